/* emulator_trial.h - kernels that do what a device does not forgive, for a test that the emulator
 * minds. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum emulator_fault {
  EMULATOR_NO_FAULT,
  EMULATOR_LANES_ENDED,  /* lanes of a warp have ended, and others exchange something */
  EMULATOR_LANES_APART,  /* lanes meet in exchanges of different lines */
  EMULATOR_WARP_SHORT,   /* a warp of which there are 16 lanes */
  EMULATOR_PACK_ASKEW,   /* sixteen bytes that begin at a multiple of four */
  EMULATOR_COPY_ASKEW,   /* copied to shared memory from there */
  EMULATOR_MATRIX_ASKEW, /* rows of a matrix begin at multiples of eight bytes of shared memory */
  EMULATOR_BEHIND,       /* a word behind the shared memory of a launch */
  EMULATOR_NOT_ASKED,    /* more than 48 KB of shared memory */
  EMULATOR_GRID_HIGH,    /* 65536 rows of blocks */
  EMULATOR_GRID_EMPTY,
  EMULATOR_BLOCK_WIDE,   /* 1025 threads */
  EMULATOR_MASK_HALF,    /* an exchange that all lanes make names 16 */
  EMULATOR_BARRIER_LEFT, /* a thread has ended, and others stand at a barrier */
  EMULATOR_BARRIERS,     /* threads of a block at different barriers */
  EMULATOR_PAGE_READ,    /* an element behind memory that ends with a page (fenced.h) */
  EMULATOR_PAGE_WRITTEN, /* one before it */
  EMULATOR_SLACK_WRITTEN, /* one behind memory that does not */

  EMULATOR_ADDRESSES, /* from here on minded by the address sanitizer alone */
  EMULATOR_READ_BEHIND = EMULATOR_ADDRESSES, /* a word behind the shared memory of a launch */
  EMULATOR_OWN_BEHIND, /* one behind an array of a thread, which has waited for others */
  EMULATOR_SLACK_READ, /* an element behind memory that does not end with a page */

  EMULATOR_RACES, /* from here on by the thread sanitizer */
  EMULATOR_RACE_BLOCK = EMULATOR_RACES, /* a word of another warp is read, and no barrier */
  EMULATOR_RACE_SHUFFLE, /* one of another lane is written, and a shuffle alone after it was read */
  EMULATOR_RACE_COPY,    /* what another lane has copied and waited for is read, and no barrier */
  EMULATOR_RACE_MATRIX,  /* loaded as rows of a matrix */
  EMULATOR_RACE_GRID,    /* two blocks write to a word of the device's memory */
  EMULATOR_N_FAULT,
};

void emulator_try (enum emulator_fault fault);

/* What a thread finds of its neighbour, which has written it, without a barrier between them; and
 * what is left of two blocks that write their numbers, 0 and 1, to one place.  A lane finds what it
 * has copied, and not waited for. */
float emulator_neighbour (int backwards);
float emulator_last_block (int backwards);
float emulator_copied_early (void);

/* What a block finds in shared memory that it has not written, where the one before it has. */
enum emulator_memory { EMULATOR_DYNAMIC, EMULATOR_STATIC, EMULATOR_STATIC_OF_TEMPLATE };
float emulator_left_over (enum emulator_memory which);

#ifdef __cplusplus
}
#endif
