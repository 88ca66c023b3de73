/* desk.h - the hardware and software of tests of cost formulas: a GPU with ten SMs of 1 GFLOP/s
 * each, and a stack whose tiles have no start-up cost. */
#pragma once
#include "tests/made/made.h"

enum { TILE_M = 100, TILE_N = 200, SMS = 10 };
#define SM_RATE 1e9
#define BANDWIDTH 1e9

struct desk {
  struct weft_cluster cluster;
  struct weft_job job;
  struct weft_cost cost;
};

static inline void
made_desk (struct desk *d)
{
  d->cluster = made_cluster (1, 1);
  d->cluster.f.gpu_sms = SMS;
  d->cluster.f.gpu_bf16 = SMS * SM_RATE;
  d->cluster.f.gpu_memory_bandwidth = BANDWIDTH;
  d->job = made_job (&d->cluster);
  d->job.stack.matmul_tile_m = TILE_M;
  d->job.stack.matmul_tile_n = TILE_N;
  d->job.stack.matmul_k_half = 0;
  d->cost = (struct weft_cost){ .cluster = &d->cluster, .stack = &d->job.stack };
}

/* Seconds of one tile on one SM. */
static inline double
made_tile_seconds (double depth)
{
  return 2.0 * TILE_M * TILE_N * depth / SM_RATE;
}
