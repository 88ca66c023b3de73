/* muon.h - which matrices the ops of Muon orthogonalise.
 *
 * A matrix is a whole parameter, or with muon_split_qkv one of the blocks of [q | k | v]. Without
 * the distributed optimizer, every rank orthogonalises each parameter of its stage, and ops have
 * the name and the layer of their parameter.
 *
 * The distributed optimizer deals out whole parameters (Megatron-Core layer_wise_optimizer.py): a
 * rank has some parameters of each bucket, in its slice. Ranks run the same program, so an op
 * stands for one parameter of each rank, turn by turn: the first of each slice, then the second ...
 * Its shape is that of the largest of these matrices, which the other ranks wait for; an executor
 * with real numbers takes the shape of the rank's own parameter. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

/* The turn of an op of Muon, in its last two dimensions: number of the bucket plus one, or 0 if the
 * op has a parameter of its own; and 4 times the number of the turn, plus that of the matrix. */
enum { WEFT_MUON_BUCKET = 6, WEFT_MUON_TURN = 7 };

/* A matrix: its size over all ranks that have parts of it (`ways`), and which rows of the parameter
 * it has. */
struct weft_muon_matrix {
  uint64_t rows, columns;
  uint32_t ways;
  enum weft_muon_block block;
};

/* The number of matrices of a parameter: 3 if it is [q | k | v] (name "qkv.weight") and split, or
 * 1. */
uint32_t weft_muon_matrices (const struct weft_job *job, const char *name);

/* Matrix number i of a parameter with this name. */
struct weft_muon_matrix weft_muon_matrix (const struct weft_job *job, const char *name,
                                          const struct weft_param *param, uint32_t i);

/* FLOPs of the products of all Newton-Schulz steps of a matrix. */
double weft_muon_flops (const struct weft_job *job, const struct weft_muon_matrix *matrix);
