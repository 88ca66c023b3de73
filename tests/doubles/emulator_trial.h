/* emulator_trial.h - kernels with faults that a GPU would not report. The emulator must report
 * them. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum emulator_fault {
  EMULATOR_NO_FAULT,
  EMULATOR_LANES_ENDED, /* some lanes of a warp have ended when the other lanes shuffle */
  EMULATOR_LANES_APART, /* lanes of a warp call the same shuffle at different source lines */
  EMULATOR_WARP_SHORT,  /* a shuffle in a warp that has only 16 threads */
  EMULATOR_PACK_ASKEW,  /* a 16-byte access at an address that is only a multiple of 4 */
  /* cp.async of 16 bytes from an address that is a multiple of 4, not of 16 */
  EMULATOR_COPY_ASKEW,
  EMULATOR_MATRIX_ASKEW, /* ldmatrix whose rows begin at multiples of 8 bytes; 16 are required */
  EMULATOR_BEHIND,       /* a write of a word behind the shared memory of the launch */
  /* a launch with more than 48 KB of shared memory that the kernel has not requested */
  EMULATOR_NOT_ASKED,
  EMULATOR_GRID_HIGH, /* 65536 blocks in y */
  EMULATOR_GRID_EMPTY,
  EMULATOR_BLOCK_WIDE, /* a launch with 1025 threads per block, one more than the limit */
  EMULATOR_MASK_HALF,  /* a shuffle by 32 lanes whose mask names only 16 lanes */
  /* a thread has ended when the other threads of the block wait at a barrier */
  EMULATOR_BARRIER_LEFT,
  EMULATOR_BARRIERS,      /* threads of a block wait at different barriers */
  EMULATOR_PAGE_READ,     /* a read behind memory that ends at the end of a page (fenced.h) */
  EMULATOR_PAGE_WRITTEN,  /* a write in front of memory that begins at the begin of a page */
  EMULATOR_SLACK_WRITTEN, /* a write behind memory that ends inside a page */
  /* the following break rules of kernels/cuda/pipeline.cuh */
  EMULATOR_MBARRIER_UNSEEN, /* a copy counts at an mbarrier that was not made visible */
  EMULATOR_PHASE_NEVER,     /* a wait for a phase that never ends */
  EMULATOR_PHASE_LEFT,      /* a block ends in the middle of a phase */
  EMULATOR_ARRIVAL_MORE,    /* two arrivals in a phase of one */
  EMULATOR_BYTES_FEW,       /* an mbarrier expects fewer bytes than are copied */
  EMULATOR_BYTES_MANY,
  EMULATOR_BOX_ASKEW,    /* a box is copied to an address that is no multiple of 128 */
  EMULATOR_MAP_ASKEW,    /* a tensor map whose rows begin at multiples of eight bytes */
  EMULATOR_NAMED_APART,  /* threads at a named barrier count different numbers of threads */
  EMULATOR_NAMED_LEFT,   /* a thread arrives at a named barrier that is never completed */
  EMULATOR_GIVEN_ODD,    /* setmaxnreg of a number that is no multiple of 8 */
  EMULATOR_TAKEN_MORE,   /* warpgroups take more registers than were given */
  EMULATOR_TAKEN_APART,  /* a warp does not take the registers that the others take */
  EMULATOR_STORE_UNSEEN, /* a bulk store of data without a fence to the async proxy */
  EMULATOR_STORE_LEFT,   /* a block ends before its bulk stores are done */
  /* a thread writes data that a bulk store of another thread may not have read */
  EMULATOR_STORE_OVERTAKEN,
  EMULATOR_TURN_EARLY,   /* a block waits for a block that has not run */

  /* the first of the faults that only the address sanitizer finds */
  EMULATOR_ADDRESSES,
  /* a read of a word behind the shared memory of the launch */
  EMULATOR_READ_BEHIND = EMULATOR_ADDRESSES,
  /* a read behind a thread's own array, after a barrier */
  EMULATOR_OWN_BEHIND,
  EMULATOR_SLACK_READ, /* a read behind memory that ends inside a page */

  /* the first of the faults that only the thread sanitizer finds */
  EMULATOR_RACES,
  /* a read of a word that another warp writes, without a barrier between them */
  EMULATOR_RACE_BLOCK = EMULATOR_RACES,
  /* a write of a word that another lane has read, with only a shuffle between them */
  EMULATOR_RACE_SHUFFLE,
  EMULATOR_RACE_COPY, /* a read of data that another lane copied by cp.async, without a barrier */
  /* an ldmatrix of data that another lane copied by cp.async, without a barrier */
  EMULATOR_RACE_MATRIX,
  EMULATOR_RACE_GRID, /* writes of one word of global memory by two blocks */
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
