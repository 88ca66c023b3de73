/* computing_cuda.h - a device that computes: the calls of exec_cuda/calls.h on the CPU, for tests.
 *
 * Streams queue what they are given, as on a GPU, and work is done when somebody waits for it: in
 * the order in which it was given or, with a seed, in any that streams and events allow, threads of
 * kernels forwards or backwards.  Kernels are those of kernels/cuda/ on the emulator; products are
 * plain loops.  Communicators wait for all members and know NCCL's rules about buffers; their sums
 * are in the order of core/base/fold.h, as those of ranks that share a GPU.  A captured graph is
 * its calls, which are given again when it runs, and CUDA's rules of capture hold.
 *
 * Memory is not a number when it is new.  That of the device is closed to the host while no work is
 * done: who touches it, dies.  What is opened must be closed. */
#pragma once
#include "exec_cuda/calls.h"
#include <pthread.h>

/* What a stream is given. */
enum computing_kind {
  COMPUTING_RECORD,
  COMPUTING_WAIT,
  COMPUTING_COPY,
  COMPUTING_FILL,
  COMPUTING_KERNEL,
  COMPUTING_HOST,
  COMPUTING_MARK,
  COMPUTING_JOIN,
  COMPUTING_EXCHANGE,
  COMPUTING_LAUNCH, /* communication of one group */
};

/* One call of communication; of a transfer, `from` is what is sent, `to` what is received into. */
struct computing_talk {
  enum weft_op_kind kind;
  weft_cuda_stream *on;
  weft_cuda_comm *comm;
  const void *from;
  void *to;
  uint64_t n;
  uint8_t dtype, reduce;
  uint32_t root, peer;
  double factor; /* of premul_sum; else 0 */
};

struct computing_meeting;

struct computing_item {
  enum computing_kind kind;
  uint64_t number; /* in the order of all calls */
  weft_cuda_event *event;
  uint64_t generation; /* the how manieth record of the event it is, or waits for */
  struct weft_cuda_copy copy; /* of fill: `to` and bytes */
  void *kernel; /* struct weft_cuda_launch, n of them; of g_rc_box_alloc() */
  enum weft_op_kind op;
  gboolean fused, same; /* attention by the library; with the same bits in every run */
  uint32_t n;
  void (*run) (void *data);
  void *data;
  uint32_t *word, value;
  struct weft_cuda_join join;
  struct weft_cuda_exchange exchange;
  GArray *talk;       /* struct computing_talk */
  GPtrArray *meeting; /* of each talk; NULL until it is given to a stream */
  gboolean posted;
};

struct computing_arena {
  void *base;
  uint64_t pages; /* bytes, a page that nobody may touch after them */
  void *at;
  uint64_t bytes;
  enum weft_pool pool;
};

struct weft_rendezvous;
struct weft_cudnn_attention;

typedef struct computing_cuda {
  struct weft_cuda_calls calls;
  uint32_t devices;      /* that it says it has; 64 */
  gboolean warpgroups;   /* it has products of warpgroups; FALSE until the caller says so */
  GRand *rand;           /* NULL: work is done in the order of calls */
  /* Ranks of other processes: this one has one rank, and works in the order of calls */
  struct weft_rendezvous *peers;
  struct weft_cudnn_attention *cudnn; /* the caller's; NULL: its kernels do attention */
  uint32_t n_fused;
  const char *said;      /* what went wrong in work; it stays */
  uint64_t now, n_given; /* works done; calls given */
  uint64_t n_seen;       /* n_given when somebody waited in vain, and since when it is that */
  gint64 seen;
  uint32_t n_open;
  gboolean open; /* memory of the device, while work is done */
  uint64_t bytes[WEFT_N_POOL]; /* allocated now */
  uint64_t n_work[COMPUTING_LAUNCH + 1]; /* done, by kind */

  pthread_mutex_t lock;
  pthread_key_t thread; /* struct of each */
  GPtrArray *threads, *stream, *clique;
  GArray *arena, *scaled; /* struct computing_arena, double */
} computing_cuda;

computing_cuda *computing_cuda_new (uint32_t seed); /* 0: in the order of calls */
void computing_cuda_free (computing_cuda *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (computing_cuda, computing_cuda_free)

/* ------------------------------------------------- for those who make more of it */

/* Work for a stream, of which it keeps a copy. */
typedef const char *computing_adder (void *self, weft_cuda_stream *stream,
                                     const struct computing_item *like);
extern computing_adder *const computing_add;

/* Memory of a pool; how many bytes it was, or FALSE where nobody has it.  That of the device is
 * closed to the host unless it may touch it. */
void *computing_map (computing_cuda *d, enum weft_pool pool, uint64_t bytes);
gboolean computing_unmap (computing_cuda *d, enum weft_pool pool, const void *at, uint64_t *bytes);
void computing_let_host (computing_cuda *d, gboolean touch);

/* In builds with the address sanitizer n launches, until computing_unfence(), touch of the device's
 * memory nothing but their operands, their control and their scratch: who does, dies. */
struct weft_cuda_launch;
void computing_fence (const computing_cuda *d, const struct weft_cuda_launch *l, uint32_t n);
void computing_unfence (const computing_cuda *d);

/* Communicators: calls of comm_..., scaled_... and window_... */
void computing_comm_calls (struct weft_cuda_calls *calls);
void computing_comm_clear (computing_cuda *d);

/* A send or a receive. */
struct computing_talk computing_transfer (enum weft_op_kind kind,
                                          const struct weft_cuda_transfer *t);

/* The meeting of a talk and of its counterparts: the next one of its communicator. */
struct computing_meeting *computing_meet (const struct computing_talk *talk);

/* The talk has come to the head of its stream; the last one does what all have met for. */
const char *computing_come (computing_cuda *d, struct computing_meeting *meeting,
                            const struct computing_talk *talk);
gboolean computing_is_over (const struct computing_meeting *meeting);

/* Attention by the device's library where it has one, which takes every shape that it is asked for:
 * what exec_cuda/module/fused.h is for a GPU. */
gboolean computing_fused_takes (const computing_cuda *d, const struct weft_kernel *k);
uint64_t computing_fused_scratch (computing_cuda *d, const struct weft_kernel *k);
const char *computing_fused_run (computing_cuda *d, const struct computing_item *item);
