/* wiring.h - how the GPUs and network ports of a node are connected, as other software prints it:
 *
 *   nvidia-smi   the matrix of `nvidia-smi topo -m`
 *   nccl         the XML file that NCCL writes to NCCL_TOPO_DUMP_FILE, read by libxml2
 *
 * A wiring changes these fields of a topology; its other numbers cannot be seen from wires. */
#pragma once
#include "core/cluster/cluster.h"

struct weft_wiring {
  unsigned gpus;
  unsigned links;      /* NVLinks of a GPU, over all its neighbours; 0: PCIe only */
  unsigned nics;       /* ports of the fastest network; 0: the file shows none */
  unsigned per_switch; /* GPUs under one PCIe switch; 0: the file does not show it */
  unsigned capability; /* compute capability of the GPUs, times ten; 0: the file does not give it */
  double nic_bytes;    /* bytes per second of a port; 0: the file does not give it */
};

struct weft_wiring_format {
  const char *name, *doc;
  /* Reads a text of this format; messages call it `name`. FALSE and an error "name:line: ..." if
   * the text is bad, or if it shows a node that topologies of Weft cannot describe. */
  gboolean (*read) (const char *text, const char *name, struct weft_wiring *out, GError **error);
};

/* All formats, closed by a row without a name. */
extern const struct weft_wiring_format weft_wiring_formats[];

/* The format of this name, or NULL. */
const struct weft_wiring_format *weft_wiring_format (const char *name);

/* A topology file: the text of topology `base` (a name or path) with the fields that the wiring
 * says. The caller frees it. NULL and an error if the base has other GPUs. */
char *weft_wiring_topology (const struct weft_wiring *wiring, const char *base, const char *source,
                            GError **error);
