/* emulator_trial.h - kernels with errors that a GPU would not report; the emulator must. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum emulator_fault {
  EMULATOR_NO_FAULT,
  EMULATOR_LANES_ENDED,  /* some lanes of a warp have ended while others shuffle */
  EMULATOR_LANES_APART,  /* lanes of a warp shuffle at different lines */
  EMULATOR_WARP_SHORT,   /* a warp of only 16 lanes */
  EMULATOR_PACK_ASKEW,   /* a 16-byte access at a multiple of four */
  EMULATOR_COPY_ASKEW,   /* cp.async from a multiple of four */
  EMULATOR_MATRIX_ASKEW, /* ldmatrix rows at multiples of eight bytes */
  EMULATOR_BEHIND,       /* writes a word beyond the shared memory of a launch */
  EMULATOR_NOT_ASKED,    /* uses more than 48 KB of shared memory without requesting it */
  EMULATOR_GRID_HIGH,    /* 65536 blocks in y */
  EMULATOR_GRID_EMPTY,
  EMULATOR_BLOCK_WIDE,   /* 1025 threads per block */
  EMULATOR_MASK_HALF,    /* a shuffle by all lanes with a mask of 16 */
  EMULATOR_BARRIER_LEFT, /* a thread has ended while others wait at a barrier */
  EMULATOR_BARRIERS,     /* threads of a block at different barriers */
  EMULATOR_PAGE_READ,    /* reads an element beyond memory that ends at a page (fenced.h) */
  EMULATOR_PAGE_WRITTEN, /* writes an element before memory that begins at a page */
  EMULATOR_SLACK_WRITTEN, /* writes an element beyond memory that does not end at a page */

  EMULATOR_ADDRESSES, /* from here on: found by the address sanitizer only */
  EMULATOR_READ_BEHIND = EMULATOR_ADDRESSES, /* reads a word beyond the shared memory of a launch */
  EMULATOR_OWN_BEHIND, /* reads beyond a thread's own array after a barrier */
  EMULATOR_SLACK_READ, /* reads an element beyond memory that does not end at a page */

  EMULATOR_RACES, /* from here on: found by the thread sanitizer */
  EMULATOR_RACE_BLOCK = EMULATOR_RACES, /* reads a word of another warp without a barrier */
  EMULATOR_RACE_SHUFFLE, /* writes a word that another lane read before a shuffle */
  EMULATOR_RACE_COPY,    /* reads data of another lane's cp.async without a barrier */
  EMULATOR_RACE_MATRIX,  /* reads another lane's cp.async by ldmatrix, without a barrier */
  EMULATOR_RACE_GRID,    /* two blocks write one word of global memory */
  EMULATOR_N_FAULT,
};

/* Runs kernels of which one has the fault. */
void emulator_try (enum emulator_fault fault);

/* The value that a thread reads from its neighbour without a barrier: 1 if the neighbour has run
 * before, otherwise NaN. */
float emulator_neighbour (int backwards);

/* The result of two blocks that write their numbers, 0 and 1, to one place. */
float emulator_last_block (int backwards);

/* The value that a lane reads after cp.async without waiting. */
float emulator_copied_early (void);

/* The value that a block reads from shared memory that only the previous block has written. */
enum emulator_memory { EMULATOR_DYNAMIC, EMULATOR_STATIC, EMULATOR_STATIC_OF_TEMPLATE };
float emulator_left_over (enum emulator_memory which);

#ifdef __cplusplus
}
#endif
