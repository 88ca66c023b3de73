/* rails.h - the rail-optimised fat tree of GPU clusters.
 *
 * GPU g sits in node g / node_gpus at slot g % node_gpus.  GPUs of one node meet at its switch.
 * Slot k uses NIC k * node_nics / node_gpus, and NIC k of every node of a scalable unit goes to
 * leaf k of that unit (a rail); spines join the leaves of a pod, a core joins pods. */
#pragma once
#include "core/cluster/fabric.h"

/* The order of weft_rails.kind. */
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
