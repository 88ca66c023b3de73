/* emulator_trial.h - kernels that do what a device does not forgive, for a test that the emulator minds. */
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
  EMULATOR_MINDED,       /* from here on by the address sanitizer alone */
  EMULATOR_READ_BEHIND = EMULATOR_MINDED, /* a word behind the shared memory of a launch */
  EMULATOR_OWN_BEHIND,   /* one behind an array of a thread, which has waited for others */
  EMULATOR_N_FAULT,
};

void emulator_try (enum emulator_fault fault);

/* What a block finds in shared memory that it has not written, where the one before it has. */
float emulator_left_over (int dynamic);

#ifdef __cplusplus
}
#endif
