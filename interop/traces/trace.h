/* trace.h - measured traces of GPUs: what a profiler recorded, read into memory.
 *
 * A trace is one file or a folder of files. Formats:
 *   - JSON of the PyTorch profiler (Kineto; Chrome's event format), also as .gz, and the traces
 *     that `weft sim --trace` writes;
 *   - SQLite databases that `nsys export --type sqlite` writes.
 *
 * Files are read as a stream: memory is proportional to the kernels, copies and launches, about a
 * hundred bytes each, and not to the text. Times are nanoseconds on the clock of the file; clocks
 * of different ranks are not compared. */
#pragma once
#include "core/report/breakdown.h"

/* No time, correlation, sequence number or rank. */
#define WEFT_TRACE_NONE G_MININT64

/* What PyTorch records of a collective (torch/csrc/distributed/c10d/ParamCommsUtils.hpp; the
 * profiler copies it to the arguments of NCCL's kernels). Equal rows are stored once. */
struct weft_trace_comm {
  const char *collective;          /* "_allgather_base"; NULL: not recorded */
  const char *group, *description; /* name and description of the process group; NULL: none */
  const char *dtype;               /* "BFloat16"; NULL: not recorded */
  const char *ranks; /* "[0, 1, 2, 3]", cut after 30 ranks with "..."; NULL: not recorded */
  int64_t size;      /* ranks of the group; 0: not recorded */
  int64_t in, out;   /* elements that this rank sends and receives */
  /* Set by axes.h, and for copies by names.h. */
  uint8_t axis;
};

enum weft_trace_kind { WEFT_TRACE_KERNEL, WEFT_TRACE_MEMCPY, WEFT_TRACE_MEMSET, WEFT_TRACE_N_KIND };

struct weft_trace_kernel {
  int64_t begin, end;
  int64_t launched; /* begin of the launch call; WEFT_TRACE_NONE: not recorded */
  const char *name; /* owned by the trace */
  uint32_t comm;    /* row of weft_trace.comm; WEFT_TRACE_NO_COMM: none */
  uint32_t stream;
  uint32_t shape;     /* row of weft_trace.shape, from 1; 0: not recorded */
  uint8_t kind;       /* enum weft_trace_kind */
  uint8_t work, axis; /* enum weft_work and axis (breakdown.h) */
  uint8_t silent;     /* TRUE: part of the launch of another kernel */
};
#define WEFT_TRACE_NO_COMM G_MAXUINT32

/* A range of the host's time that is a step: an annotation or an NVTX range. */
struct weft_trace_step {
  int64_t number, begin, end;
};

/* All kernels of one GPU. */
struct weft_trace_rank {
  char *file;      /* path of the file */
  int64_t rank;    /* WEFT_TRACE_NONE: not recorded */
  int64_t world;   /* number of ranks of the job; 0: not recorded */
  const char *gpu; /* name of the GPU; NULL: not recorded */
  gboolean own;    /* written by weft sim: the whole trace is one step */
  GArray *kernel;  /* struct weft_trace_kernel, in order of begin */
  GArray *step;    /* struct weft_trace_step, in order of begin */
};

typedef struct weft_trace {
  char *name;       /* path, as the user typed it */
  const char *tool; /* recorded by: "PyTorch profiler", "Nsight Systems", "weft sim" */
  GPtrArray *rank;  /* struct weft_trace_rank, in order of rank */
  GArray *comm;     /* struct weft_trace_comm */
  GPtrArray *shape; /* texts: name of the op, "Input Dims" and "Input type" of a cpu_op */
  GStringChunk *strings;
  GHashTable *comms, *shapes; /* rows of `comm` and `shape` by content */
} weft_trace;

/* How a trace is read. `step_name`: name of the ranges that are steps, before their number; NULL:
 * the usual names (trace.c). `shapes`: whether to keep shapes of operands. */
struct weft_trace_options {
  const char *step_name;
  gboolean shapes;
};

/* Whether a path is a trace and not a timeline of Weft (timeline_file.h): a folder, an SQLite
 * database, or JSON whose first bytes contain the members of Chrome's format. */
gboolean weft_trace_claims (const char *path);

/* Reads a file or a folder. Every error names the file and what was found; the caller frees the
 * trace. */
weft_trace *
weft_trace_load (const char *path, const struct weft_trace_options *options, GError **error);
void weft_trace_free (weft_trace *trace);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_trace, weft_trace_free)

/* --------------------------------------------------------------- for the readers */

weft_trace *weft_trace_new (const char *name);
struct weft_trace_rank *weft_trace_add_rank (weft_trace *trace, const char *file);

/* The one copy of a text that the trace owns, with bytes that are not UTF-8 replaced; NULL for
 * NULL. */
const char *weft_trace_string (weft_trace *trace, const char *text);

/* The row of a collective, which is added if it is new. The texts must be strings of the trace. */
uint32_t weft_trace_comm_row (weft_trace *trace, const struct weft_trace_comm *comm);
uint32_t weft_trace_shape_row (weft_trace *trace, const char *text);

/* Adds a range of the host's time, if its name is that of a step. */
void weft_trace_add_range (struct weft_trace_rank *rank, const char *name, int64_t begin,
                           int64_t end, const struct weft_trace_options *options);

/* The call that launched a kernel: its correlation and begin. */
struct weft_trace_launch {
  int64_t correlation, begin;
};

/* Completes a rank whose kernels have their correlation in `launched`: replaces it by the begin of
 * the launch, and sorts kernels and steps. Sorts `launches`. */
void weft_trace_finish_rank (struct weft_trace_rank *rank, GArray *launches);
