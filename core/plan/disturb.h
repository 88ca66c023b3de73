/* disturb.h - disturbances of a step that the simulator predicts: slow GPUs, slow links, and noise
 * of kernel times.
 *
 * STRAGGLERS. "rank=5:1.2" makes the kernels of rank 5 take 1.2 times as long; "node=3:1.1" those
 * of all ranks on node 3; "rank=0-7:1.2" those of eight ranks. Items are separated by commas; a
 * rank that several items name has the product of their factors. Launches by the host, copies and
 * transfers keep their times.
 *
 * LINKS. "nic3:0.5" halves the rate of NIC 3 in both directions, "nic3-up:0.5" only what the NIC
 * sends, "nic@rank5:0.5" the NIC of rank 5, "nvlink@node2:0.5" the NVLink ports of node 2,
 * "leaf:0.5" all leaves. The names are those of the fabric's kinds of links (fabric.h). The
 * algorithms of collectives stay those of the undisturbed cluster, because a communication library
 * does not measure links.
 *
 * JITTER. The time of each kernel of each rank is multiplied by a factor of its own from a
 * log-normal distribution with mean 1 and a given coefficient of variation (standard deviation
 * divided by the mean): times are positive and skewed to long ones (T. Hoefler and R. Belli,
 * "Scientific Benchmarking of Parallel Computing Systems", SC15, section 3.1.3). The factor depends
 * only on seed, rank and op.
 *
 * Published widths: GPUs of one kind differ by 8 % on average and by 22 % at most, with outliers
 * that are 1.5 times slower than the median (P. Sinha et al., "Not All GPUs Are Created Equal",
 * SC22, abstract). */
#pragma once
#include "core/plan/actors.h"

/* Names for help texts and messages. */
#define WEFT_STRAGGLER_FORM "rank=5:1.2, rank=0-7:1.2 or node=3:1.1"
#define WEFT_SLOW_LINK_FORM "nic3:0.5, nic@rank5:0.5 or nvlink@node2:0.5"

typedef struct weft_disturb {
  double *slow;  /* by rank: factor of its kernel times; NULL: no straggler */
  double *share; /* by link of the fabric: share of its capacity; NULL: no slow link */
  double jitter; /* coefficient of variation of kernel times; 0: none */
  uint64_t seed;
} weft_disturb;

void weft_disturb_clear (weft_disturb *disturb);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_disturb, weft_disturb_clear)

/* Reads stragglers or slow links into *disturb, which must be zeroed or filled by these functions.
 * `text` NULL or "": none. A rank, node or link that the cluster does not have is refused. */
gboolean weft_disturb_stragglers (weft_disturb *disturb, const struct weft_fabric *fabric,
                                  const char *text, GError **error);
gboolean weft_disturb_links (weft_disturb *disturb, const struct weft_fabric *fabric,
                             const char *text, GError **error);

/* Whether there is a straggler, a slow link or jitter. */
gboolean weft_disturb_any (const weft_disturb *disturb);

/* The factor of the time of a kernel. Without stragglers and jitter exactly 1. */
double weft_disturb_factor (const weft_disturb *disturb, uint32_t rank, uint32_t op);
