/* playing_cublaslt.h - a stand-in for cuBLASLt and for what kernels/cuda/blas.c asks of CUDA's
 * runtime.  It multiplies in memory of the host, and refuses what the library's documentation says
 * that it does: types, transposes, alignments, epilogues and scales that do not go together (cuBLAS
 * 13, "cublasLtMatmul", "Narrow precision data types usage"; cublasLt.h). */
#pragma once
#include <stdint.h>

struct playing_cublaslt {
  int arch;              /* of the GPU that it plays: 10 * major + minor */
  uint64_t n_heuristics; /* questions, answers, products and questions about an algorithm so far */
  uint64_t n_candidates, n_products, n_checks;
  uint64_t wants;     /* bytes of workspace of every algorithm but the last of an answer */
  uint32_t fastest;   /* of an answer: the one that takes the least time */
  int dear_epilogues; /* products with an epilogue take more than those without and a kernel */
  int forgets;        /* no algorithm that it is asked about is known any more */
};
extern struct playing_cublaslt playing_cublaslt;
