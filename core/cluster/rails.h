/* rails.h - the rail-optimised fat tree of GPU clusters.
 *
 * GPU g is slot g % node_gpus of node g / node_gpus. A switch connects the GPUs of a node. Slot k
 * uses NIC k * node_nics / node_gpus, and NIC k of every node of a scalable unit is connected to
 * leaf switch k of that unit (a rail). Spine switches connect the leaves of a pod, and a core
 * connects the pods. */
#pragma once
#include "core/cluster/fabric.h"

/* Kinds of links of a rail-optimised fat tree, in the order of weft_rails.kind. */
enum weft_rails_link {
  WEFT_LINK_PORT_UP,
  WEFT_LINK_PORT_DOWN,
  WEFT_LINK_PCIE_UP,
  WEFT_LINK_PCIE_DOWN,
  WEFT_LINK_HOST_UP,
  WEFT_LINK_HOST_DOWN,
  WEFT_LINK_MEMORY,
  WEFT_LINK_NIC_UP,
  WEFT_LINK_NIC_DOWN,
  WEFT_LINK_LEAF_UP,
  WEFT_LINK_LEAF_DOWN,
  WEFT_LINK_SPINE_UP,
  WEFT_LINK_SPINE_DOWN,
  WEFT_N_LINK
};

/* Bandwidth of a GPU's port at the switch of its node. */
double weft_link_port_rate (const struct weft_fabric *f);

/* The links of GPUs to the switch of their node: the first rows of a table of link kinds. */
#define WEFT_PORT_LINKS                                                                            \
  { "port up", "GPU into its node's switch", weft_link_each_gpu, weft_link_of_gpu,                 \
    weft_link_port_rate, "nvlink" },                                                               \
  { "port down", "node's switch into a GPU", weft_link_each_gpu, weft_link_of_gpu,                 \
    weft_link_port_rate, "nvlink" },
