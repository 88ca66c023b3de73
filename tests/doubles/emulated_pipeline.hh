/* emulated_pipeline.hh - TMA, mbarriers, named barriers and setmaxnreg for kernels on the emulator
 * (emulated_cuda.hh). kernels/cuda/pipeline.cuh states the rules for kernels.
 *
 * A copy poisons its destination when it is issued, and arrives when no thread can go on without
 * it, not before a thread waits for its mbarrier. Ends the program: a wait that never ends; bytes
 * that an mbarrier does not expect; an arrival too many; a copy to an mbarrier that is not yet
 * visible; misaligned or impossible tensor maps; a block that ends in the middle of a phase or
 * before its copies; register counts that the manual forbids. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { EMULATED_DIMS = 5 };

/* A tensor map with 16-bit elements and the 128-byte swizzle; step: bytes per dimension. */
struct emulated_tensor_map {
  const uint8_t *at;
  uint64_t dim[EMULATED_DIMS], step[EMULATED_DIMS];
  uint32_t box[EMULATED_DIMS];
};

/* Returns NULL, or why cuTensorMapEncodeTiled() would refuse the map. step: of all dimensions but
 * the first. */
const char *emulated_make_map (emulated_tensor_map *map, const void *at, const uint64_t *dim,
                               const uint64_t *step, const uint32_t *box);
void emulated_load_box (void *to, const emulated_tensor_map *map, const int32_t *place,
                        uint64_t *mbarrier);
void emulated_load_bytes (void *to, const void *from, unsigned bytes, uint64_t *mbarrier);
void emulated_store_bytes (void *to, const void *from, unsigned bytes, bool adds);
void emulated_stores_commit (void);
void emulated_stores_have_read (void);
/* Waits for all but the newest `open` groups. */
void emulated_stores_are_done (unsigned open);

void emulated_mbarrier_init (uint64_t *mbarrier, unsigned arrivals);
void emulated_mbarriers_are_seen (void);
void emulated_mbarrier_arrive (uint64_t *mbarrier);
void emulated_mbarrier_expect (uint64_t *mbarrier, unsigned bytes);
void emulated_mbarrier_wait (uint64_t *mbarrier, unsigned parity);

void emulated_named_sync (unsigned number, unsigned threads);
void emulated_named_arrive (unsigned number, unsigned threads);
void emulated_registers (unsigned n, bool takes);

/* Words of device memory by which blocks take turns. Blocks run one after the other, so a wait for
 * a block that has not run ends the program. */
uint32_t emulated_next_ticket (uint32_t *count);
void emulated_turn_wait (const uint32_t *turn, uint32_t n);
void emulated_turn_pass (uint32_t *turn);

/* ------------------------------------------------------------- between parts of the emulator */

/* Called when a block with `shared` bytes of shared memory begins and ends. */
void emulated_pipeline_open (size_t shared);
void emulated_pipeline_close (void);
/* Lets one copy arrive for whose mbarrier a thread waits, the newest or the oldest. Returns
 * false if there is none. */
bool emulated_pipeline_deliver (bool newest);
/* Whether a thread sleeps until emulated_wake() for this object. */
bool emulated_is_awaited (const void *object);
