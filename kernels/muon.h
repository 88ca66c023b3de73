/* muon.h - the matrices that Muon orthogonalises (Jordan 2024, kellerjordan.github.io/posts/muon).
 *
 * A parameter is one matrix, or with muon_split_qkv the three blocks of [q | k | v], each a matrix.
 * A matrix is whole: its rows or columns come from all tensor parallel ranks that divide the
 * parameter (`ways` 1: from this rank only). The order of its rows is that of the whole tensor
 * (core/program/cut.h), so a matrix has the same bits for every number of ranks. */
#pragma once
#include "kernels/kernel.h"

/* Coefficients (a, b, c) of step `step`, from 0 on, of the Newton-Schulz iteration. */
void weft_muon_coefficients (enum weft_muon_coefficient type, uint64_t step, float out[3]);

/* Factor of the orthogonalised matrix, by its shape. */
double weft_muon_scale (enum weft_muon_scale mode, uint64_t rows, uint64_t columns);
