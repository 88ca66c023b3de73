/* contention.h - lower bounds of the simulated time of a step that know what ranks share. The clock
 * executor knows no contention.
 *
 * SMs, which communication takes from kernels.
 *
 * Let communication of one lane take at least k SMs for at least C seconds of the step, the sum of
 * its durations without contention. During this time the GPU runs kernels slowly, with k SMs
 * fewer, or it waits. A kernel of w seconds that runs slowly throughout takes w' >= w seconds: it
 * covers w' seconds of communication and lengthens the step by w' - w. A wait covers as much as it
 * lengthens the step. So with the sum W of all kernels
 *
 *   T >= W + the least lengthening that covers C seconds
 *
 * in which the kernels with the smallest 1 - w / w' run slowly, the last one in part (a fractional
 * knapsack). The bound is the largest for any lane, any k of its ops, and any role.
 *
 * Links to the host, which the GPUs of a PCIe switch and of a node share. Ranks of one stage run
 * the same ops at the same time, so n ranks of a stage behind a link copy at 1/n of its rate. */
#pragma once
#include "core/plan/plan.h"

/* The bound in seconds for a priced plan; 0 if it does not exceed `known` seconds. */
double weft_contention_bound (const weft_plan *plan, double known);

/* The factor by which the bytes of a copy between GPU and host take longer than alone, at least 1:
 * the ranks of the role's stage on the same node copy too. */
double weft_contention_copies (const weft_plan *plan, uint32_t role);
