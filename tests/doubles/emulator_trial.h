/* emulator_trial.h - kernels with faults that a GPU would not report. The emulator must report
 * them. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum emulator_fault {
  EMULATOR_NO_FAULT,
  EMULATOR_LANES_ENDED,  /* some lanes of a warp have ended while others shuffle */
  EMULATOR_LANES_APART,  /* lanes of a warp shuffle at different lines */
  EMULATOR_WARP_SHORT,   /* an exchange in a warp of only 16 lanes */
  EMULATOR_PACK_ASKEW,   /* a 16-byte access at an address that is only a multiple of 4 */
  EMULATOR_COPY_ASKEW,   /* cp.async from an address that is only a multiple of 4 */
  EMULATOR_MATRIX_ASKEW, /* ldmatrix with rows at multiples of only 8 bytes */
  EMULATOR_BEHIND,       /* writes a word beyond the shared memory of a launch */
  EMULATOR_NOT_ASKED,    /* uses more than 48 KB of shared memory without requesting it */
  EMULATOR_GRID_HIGH,    /* 65536 blocks in y */
  EMULATOR_GRID_EMPTY,
  EMULATOR_BLOCK_WIDE,    /* 1025 threads per block */
  EMULATOR_MASK_HALF,     /* a shuffle by all 32 lanes with a mask of 16 */
  EMULATOR_BARRIER_LEFT,  /* a thread has ended while others wait at a barrier */
  EMULATOR_BARRIERS,      /* threads of a block at different barriers */
  EMULATOR_PAGE_READ,     /* reads an element beyond memory that ends at a page (fenced.h) */
  EMULATOR_PAGE_WRITTEN,  /* writes an element before memory that begins at a page */
  EMULATOR_SLACK_WRITTEN, /* writes an element beyond memory that does not end at a page */

  EMULATOR_ADDRESSES,                        /* from here on: found by the address sanitizer only */
  EMULATOR_READ_BEHIND = EMULATOR_ADDRESSES, /* reads a word beyond the shared memory of a launch */
  EMULATOR_OWN_BEHIND,                       /* reads beyond a thread's own array after a barrier */
  EMULATOR_SLACK_READ, /* reads an element beyond memory that does not end at a page */

  EMULATOR_RACES,                       /* from here on: found by the thread sanitizer */
  EMULATOR_RACE_BLOCK = EMULATOR_RACES, /* reads a word of another warp without a barrier */
  EMULATOR_RACE_SHUFFLE,                /* writes a word that another lane read before a shuffle */
  EMULATOR_RACE_COPY,   /* reads data of another lane's cp.async without a barrier */
  EMULATOR_RACE_MATRIX, /* reads another lane's cp.async by ldmatrix, without a barrier */
  EMULATOR_RACE_GRID,   /* two blocks write one word of global memory */
  EMULATOR_N_FAULT,
};

/* Runs a kernel that has the fault `fault`, and kernels without a fault. */
void emulator_try (enum emulator_fault fault);

/* Each thread reads the value of its neighbour without a barrier. Returns what a thread reads: 1 if
 * its neighbour has run before it, otherwise NaN. */
float emulator_neighbour (int backwards);

/* Two blocks write their numbers, 0 and 1, to one place. Returns the number that remains: that of
 * the block that ran last. */
float emulator_last_block (int backwards);

/* Returns what a lane reads after cp.async if it does not wait for the copy. */
float emulator_copied_early (void);

/* Returns what a block reads from shared memory that only the previous block has written. */
enum emulator_memory { EMULATOR_DYNAMIC, EMULATOR_STATIC, EMULATOR_STATIC_OF_TEMPLATE };
float emulator_left_over (enum emulator_memory which);

#ifdef __cplusplus
}
#endif
