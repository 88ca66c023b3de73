/* rounds.h - the rounds and moves of a collective algorithm whose steps are ordered. */
#pragma once
#include "core/collective/algorithm.h"

/* Sets the round of every step, the number of rounds, and the moves. complete[s]: after
 * receive s its chunk holds everything that the collective promises. */
void weft_algo_find_rounds (weft_algo *a, const gboolean *complete);
