/* traits.h - the properties of a job that decide which published runs are similar to it: GPU,
 * software, size, kind of parallelism, precision. */
#pragma once
#include "core/base/words.h"
#include "core/job/job.h"

/* X (ID, word, doc): kinds of parallelism. The kind of a job is the first row of this list that the
 * job uses. */
#define WEFT_LAYOUT_LIST(X)                                                                        \
  X (WEFT_LAYOUT_PIPELINE, "pipeline", "several pipeline stages")                                  \
  X (WEFT_LAYOUT_CONTEXT, "context", "several context parallel ranks")                             \
  X (WEFT_LAYOUT_TENSOR, "tensor", "several tensor parallel ranks")                                \
  X (WEFT_LAYOUT_DATA, "data", "replicas only")
enum weft_job_layout { WEFT_LAYOUT_LIST (WEFT_WORD_ID) WEFT_N_LAYOUT };
extern const char *const weft_layout_words[];

/* X (ID, text, most GPUs): classes of cluster sizes of a job. */
#define WEFT_JOB_SIZE_LIST(X)                                                                      \
  X (WEFT_JOB_SIZE_NODE, "up to 8 GPUs", 8)                                                        \
  X (WEFT_JOB_SIZE_NODES, "9 to 64 GPUs", 64)                                                      \
  X (WEFT_JOB_SIZE_UNITS, "65 to 512 GPUs", 512)                                                   \
  X (WEFT_JOB_SIZE_PODS, "more than 512 GPUs", UINT32_MAX)
enum weft_job_size { WEFT_JOB_SIZE_LIST (WEFT_WORD_ID) WEFT_N_JOB_SIZE };
extern const char *const weft_job_size_texts[];

/* The traits contain no pointers, so that processes can exchange them; longer names are cut off. */
struct weft_traits {
  char gpu[48], stack[48];
  /* the stack at the end of the chain of stack files that the job's stack inherits from */
  char family[48];
  int32_t capability; /* compute capability of the GPU (core/cluster.def); 0: unknown */
  uint32_t gpus;
  int32_t layout;     /* value of enum weft_job_layout */
  gboolean experts;   /* TRUE: the model has experts */
  char precision[8];  /* dtype of the matrix products, a word of WEFT_PRECISION_LIST */
};

/* The traits of a job. The job must have been built (weft_job_build()). */
struct weft_traits weft_traits_of (const struct weft_job *job);

/* The name of the GPU without the word NVIDIA. */
const char *weft_traits_short_gpu (const struct weft_traits *traits);

enum weft_job_size weft_job_size_of (uint32_t gpus);
