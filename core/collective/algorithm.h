/* algorithm.h - a collective algorithm as data: a text file says which chunk each rank sends to
 * which rank, and whether the receiver copies or adds it. docs/collectives.md describes the
 * notation.
 *
 * The tensor of a collective is cut into equal chunks. Every rank runs the same text with its own
 * number r. Its steps are sends and receives; a receive copies the chunk or adds it to the chunk
 * that the rank has. Each step is on a channel. The steps of a rank on one channel run in order; a
 * send does not wait, a receive waits for its message. The k-th message from one rank to another on
 * a channel belongs to the k-th receive there. Steps of a rank on several channels are ordered only
 * if they touch the same chunk, and one of them changes it: then they run in the order of the text.
 * (The terms are those of MSCCL, microsoft/msccl-tools: chunks, steps, channels.)
 *
 * weft_algo_new() proves, for one number of ranks: every message has a receive; there is no
 * deadlock; every rank ends with the chunks that the collective promises, and each contribution is
 * added exactly once. Then it assigns each message to a round, the earliest in which its sender can
 * send it. A round moves its messages together (core/program/coll.h). */
#pragma once
#include "core/base/words.h"
#include <glib.h>
#include <stdint.h>

/* The collectives that a file can describe, by the words of their ops (core/ops.def), and what
 * each rank has before and after. Chunk c belongs to rank c / (chunks / ranks). */
#define WEFT_COLLECTIVE_LIST(X)                                                                    \
  X (WEFT_COLLECTIVE_ALL_REDUCE, "all_reduce", "every rank ends with the sum of all ranks")        \
  X (WEFT_COLLECTIVE_REDUCE_SCATTER, "reduce_scatter", "every rank ends with its chunks of the "   \
                                                       "sum")                                      \
  X (WEFT_COLLECTIVE_ALL_GATHER, "all_gather", "every rank ends with the chunks of all ranks")     \
  X (WEFT_COLLECTIVE_BROADCAST, "broadcast", "every rank ends with the chunks of rank 0")
enum weft_collective { WEFT_COLLECTIVE_LIST (WEFT_WORD_ID) WEFT_N_COLLECTIVE };
extern const char *const weft_collective_words[]; /* NULL-terminated */

/* In a round, rank `from` sends chunk `piece` to rank `to`, which copies or adds it. */
struct weft_move {
  uint32_t round, from, to, piece;
  gboolean reduce;   /* adds; FALSE: copies */
  gboolean complete; /* this move completes the sum of the piece, which an average then divides */
  gboolean own;      /* the result is the receiver's own piece of a reduce-scatter */
  /* A message that waits at the receiver, or whose place another message overwrites in the same
   * round, is two moves: with `fetch` it enters a slot, without `fetch` it leaves the slot. Slots
   * are numbered from 1; 0: no slot. */
  uint32_t slot;
  gboolean fetch;
};

/* A step of one rank. */
struct weft_algo_step {
  uint32_t rank, channel, peer, chunk, line;
  enum { WEFT_STEP_SEND, WEFT_STEP_COPY, WEFT_STEP_ADD } kind;
  uint32_t match; /* the step at the other end */
  uint32_t round; /* a send: round of its message; a receive: round after which it has ended */
};

typedef struct weft_algo {
  char *name; /* of the file */
  enum weft_collective collective;
  int protocol; /* enum weft_protocol; -1: the library chooses */
  uint32_t n, n_chunks, n_channels, n_rounds;
  uint32_t n_step;
  struct weft_algo_step *step;
  uint32_t *order; /* [n_step]: the steps in an order in which they can run */
  /* The steps that step s waits for, without its message: wait[first_wait[s]] to
   * wait[first_wait[s + 1] - 1]. */
  uint32_t *wait, *first_wait;
  uint32_t *like; /* [n_rounds]: the first round with the same senders and receivers */
  /* The moves of executors that compute, sorted by their rounds and `to`. With slots every round is
   * two of their rounds: messages enter slots, then all other moves. */
  GArray *moves;    /* struct weft_move */
  uint32_t n_slots; /* slots of a rank */
} weft_algo;

/* A file that was read: its text without errors of notation. */
typedef struct weft_algo_text weft_algo_text;

weft_algo_text *weft_algo_load (const char *path, GError **error);
weft_algo_text *weft_algo_parse (const char *text, const char *name, GError **error);
enum weft_collective weft_algo_collective (const weft_algo_text *text);
void weft_algo_text_free (weft_algo_text *text);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_algo_text, weft_algo_text_free)

/* The algorithm of a file for n ranks (n > 1), proved. NULL with an error that names file, line and
 * rank if it does not hold for n ranks. A deadlock is printed as the cycle of its steps. */
weft_algo *weft_algo_new (const weft_algo_text *text, uint32_t n, GError **error);
void weft_algo_free (weft_algo *algorithm);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_algo, weft_algo_free)
