/* The calls of exec_gpu/calls.h, implemented with the CUDA runtime and NCCL; the only C file that
 * includes both headers.
 *
 * Communicators do not block: a call only begins an operation, if necessary in a thread of NCCL,
 * and the caller polls whether the operation has completed.  Therefore the executor can name a
 * missing rank and abort the communicators that wait for it. */
#include "exec_gpu/calls.h"
#include "exec_gpu/cuda/module/cupti.h"
#include "exec_gpu/cuda/module/driver.h"
#include "exec_gpu/cuda/module/fused.h"
#include "exec_gpu/cuda/module/libraries.h"
#include "exec_gpu/cuda/module/sums.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/table.h"
#include "kernels/float.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string.h>

/* Functions that older releases of NCCL lack. They are weak symbols, so that the module loads with
 * these releases too. Jobs that need no such function run, for example all jobs on one GPU. */
#pragma weak ncclAlltoAll
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#define WEFT_NCCL_OLD(what, wanted)                                                                \
  what " needs NCCL " wanted " or newer; the library that was found is older (`weft bench cuda "   \
       "--device` prints its version and path)"

struct weft_gpu_comm {
  ncclComm_t comm;
};

/* Memory that is registered with a communicator: a symmetric window or, if `registered` is set, a
 * registration of this member alone, which saves copies but not SMs. */
struct weft_gpu_window {
  ncclWindow_t window;
  void *registered;
};

/* cuStreamWriteValue32() of the driver, which is not linked because it may be absent. */
typedef CUresult (*write_word) (CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);

#define MOST_DEVICES 64

struct cuda {
  struct weft_gpu_calls calls;
  write_word write;
  struct weft_cupti *cupti; /* trace of kernels; NULL: kernels are not traced */
  /* by device: the cuBLASLt state; NULL before the first matrix product on this device */
  struct weft_cuda_blas *blas[MOST_DEVICES];
  /* use kernels with warpgroup instructions (wgmma) if the device has these instructions */
  uint8_t warpgroups; /* enum weft_cuda_warpgroups: what WEFT_WARPGROUPS allows */
  struct weft_fused *fused;
};

/* The message of an error, or NULL.  Resets the last error of this thread, which the next launch
 * would otherwise return as its own error. */
static const char *
said (cudaError_t error)
{
  if (error != cudaSuccess)
    (void) cudaGetLastError ();
  return error == cudaSuccess ? NULL : cudaGetErrorString (error);
}

static gboolean
is_well (ncclResult_t result)
{
  return result == ncclSuccess || result == ncclInProgress;
}

static const char *
told (ncclResult_t result)
{
  const char *last = is_well (result) ? NULL : ncclGetLastError (NULL);

  return is_well (result) ? NULL : last && *last ? last : ncclGetErrorString (result);
}

static cudaStream_t
stream_of (weft_gpu_stream *stream)
{
  return (cudaStream_t) (void *) stream;
}

static cudaEvent_t
event_of (weft_gpu_event *event)
{
  return (cudaEvent_t) (void *) event;
}

/* -------------------------------------------------------------------------- traces */

static const char *
trace_open (void *self)
{
  struct cuda *cuda = self;

  return cuda->cupti ? NULL : weft_cupti_begin (&cuda->cupti);
}

static const char *
trace_take (void *self, weft_gpu_take take, void *user, uint64_t *lost)
{
  return weft_cupti_take (((struct cuda *) self)->cupti, take, user, lost);
}

/* ------------------------------------------------------------------- devices, memory */

static const char *
call_devices (void *self, uint32_t *n)
{
  int found = 0;
  const char *text = said (cudaGetDeviceCount (&found));

  (void) self;
  *n = (uint32_t) found;
  return text;
}

static const char *
call_describe (void *self, uint32_t device, struct weft_gpu_device *out)
{
  struct cudaDeviceProp p;
  size_t free = 0, total = 0;
  const char *text = said (cudaGetDeviceProperties (&p, (int) device));

  (void) self;
  if (!text && !(text = said (cudaSetDevice ((int) device))))
    text = said (cudaMemGetInfo (&free, &total));
  if (text)
    return text;
  *out = (struct weft_gpu_device){ .bytes = p.totalGlobalMem,
                                    .free = free,
                                    .sms = (uint32_t) p.multiProcessorCount,
                                    .major = (uint32_t) p.major,
                                    .minor = (uint32_t) p.minor };
  g_strlcpy (out->name, p.name, sizeof out->name);
  return NULL;
}

static const char *
call_choose (void *self, uint32_t device)
{
  (void) self;
  return said (cudaSetDevice ((int) device));
}

/* Sets the op to which the trace assigns the following calls of this thread, up to the next call of
 * this function. */
static const char *
call_about (void *self, uint32_t row, uint32_t op)
{
  weft_cupti_about (((struct cuda *) self)->cupti, row, op);
  return NULL;
}

static const char *
call_alloc (void *self, enum weft_pool pool, uint64_t bytes, void **out)
{
  (void) self;
  switch (pool) {
  case WEFT_POOL_SYMMETRIC:
    return told (ncclMemAlloc (out, bytes));
  case WEFT_POOL_HOST:
    return said (cudaHostAlloc (out, bytes, cudaHostAllocDefault));
  default:
    return said (cudaMalloc (out, bytes));
  }
}

static const char *
room (void *self, uint64_t *left, uint64_t *all)
{
  size_t nobodys = 0, total = 0;
  const char *text = said (cudaMemGetInfo (&nobodys, &total));

  (void) self;
  *left = nobodys;
  *all = total;
  return text;
}

static const char *
call_release (void *self, enum weft_pool pool, void *at)
{
  (void) self;
  switch (pool) {
  case WEFT_POOL_SYMMETRIC:
    return told (ncclMemFree (at));
  case WEFT_POOL_HOST:
    return said (cudaFreeHost (at));
  default:
    return said (cudaFree (at));
  }
}

/* ------------------------------------------------------------------- streams, events */

static const char *
call_stream_open (void *self, gboolean urgent, weft_gpu_stream **out)
{
  int least = 0, greatest = 0;
  const char *text = said (cudaDeviceGetStreamPriorityRange (&least, &greatest));

  (void) self;
  return text ? text
              : said (cudaStreamCreateWithPriority ((cudaStream_t *) (void *) out,
                                                    cudaStreamNonBlocking,
                                                    urgent ? greatest : least));
}

static const char *
call_stream_close (void *self, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaStreamDestroy (stream_of (stream)));
}

static const char *
call_event_open (void *self, gboolean timed, weft_gpu_event **out)
{
  (void) self;
  return said (cudaEventCreateWithFlags ((cudaEvent_t *) (void *) out,
                                         timed ? cudaEventDefault : cudaEventDisableTiming));
}

static const char *
call_event_close (void *self, weft_gpu_event *event)
{
  (void) self;
  return said (cudaEventDestroy (event_of (event)));
}

static const char *
call_record (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaEventRecord (event_of (event), stream_of (stream)));
}

/* During capture the event is recorded as external: only external events of a graph can be read. */
static const char *
call_stamp (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const char *text = said (cudaStreamIsCapturing (stream_of (stream), &status));

  (void) self;
  return text ? text
              : said (cudaEventRecordWithFlags (event_of (event), stream_of (stream),
                                                status == cudaStreamCaptureStatusActive
                                                    ? cudaEventRecordExternal
                                                    : cudaEventRecordDefault));
}

static const char *
call_wait (void *self, weft_gpu_stream *stream, weft_gpu_event *event)
{
  (void) self;
  return said (cudaStreamWaitEvent (stream_of (stream), event_of (event), 0));
}

static const char *
call_query (void *self, weft_gpu_event *event, gboolean *done)
{
  cudaError_t error = cudaEventQuery (event_of (event));
  const char *text = said (error);

  (void) self;
  *done = error == cudaSuccess;
  return error == cudaErrorNotReady ? NULL : text;
}

static const char *
call_elapsed (void *self, weft_gpu_event *from, weft_gpu_event *to, double *seconds)
{
  float ms = 0;
  const char *text = said (cudaEventElapsedTime (&ms, event_of (from), event_of (to)));

  (void) self;
  *seconds = 1e-3 * (double) ms;
  return text;
}

static const char *
call_finish (void *self, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaStreamSynchronize (stream_of (stream)));
}

/* ----------------------------------------------------------------------------- work */

static const char *
call_copy (void *self, const struct weft_gpu_copy *copy, weft_gpu_stream *stream)
{
  static const enum cudaMemcpyKind ways[] = {
    [WEFT_GPU_TO_DEVICE] = cudaMemcpyHostToDevice,
    [WEFT_GPU_TO_HOST] = cudaMemcpyDeviceToHost,
    [WEFT_GPU_ON_DEVICE] = cudaMemcpyDeviceToDevice,
  };

  (void) self;
  return said (
      cudaMemcpyAsync (copy->to, copy->from, copy->bytes, ways[copy->way], stream_of (stream)));
}

static const char *
call_fill (void *self, void *at, uint8_t byte, uint64_t bytes, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaMemsetAsync (at, byte, bytes, stream_of (stream)));
}

static gboolean
has_kernel (void *self, enum weft_op_kind kind)
{
  (void) self;
  return weft_cuda_launchers[kind] != NULL;
}

/* Finds the device that this thread has chosen. No other thread uses this device. */
static const char *
chosen (int *device)
{
  const char *text = said (cudaGetDevice (device));

  if (!text && *device >= MOST_DEVICES)
    text = "the cuda executor supports at most 64 GPUs of a node";
  return text;
}

/* Returns which kernels with warpgroup products are used (enum weft_cuda_warpgroups). */
static uint8_t
warpgroups_of (const struct cuda *cuda)
{
  return WEFT_CUDA_90A ? weft_driver_warpgroups (cuda->warpgroups) : WEFT_NO_WARPGROUPS;
}

static uint64_t
scratch (void *self, const struct weft_kernel *k)
{
  struct cuda *cuda = self;
  uint64_t own = weft_cuda_scratch (k->kind, &k->shape), fused = 0,
           producer = weft_fused_producer_scratch (k, warpgroups_of (cuda));
  int device = 0;

  if (k->fused && !chosen (&device))
    (void) weft_fused_takes (cuda->fused, device, k, &fused);
  return MAX (MAX (own, producer), fused);
}

static const char *
find_blas (struct cuda *cuda, struct weft_cuda_blas **out)
{
  int device = 0;
  const char *text = chosen (&device);

  if (!text && !cuda->blas[device])
    cuda->blas[device] = weft_blas_new (&text);
  *out = text ? NULL : cuda->blas[device];
  return text;
}

static gboolean
fuses (void *self, const struct weft_kernel *k)
{
  struct cuda *cuda = self;
  uint64_t bytes;
  int device = 0;

  return k->fused && !chosen (&device) && weft_fused_takes (cuda->fused, device, k, &bytes);
}

/* Launches n kernels of one op. Fused attention is one call. */
static const char *
launch_some (struct cuda *cuda, const struct weft_kernel *k, const struct weft_cuda_launch *l,
             uint32_t n)
{
  int device = 0;

  if (!fuses (cuda, k))
    return weft_cuda_launch_all (k->kind, l, n);
  const char *text = chosen (&device);
  return text ? text : weft_fused_run (cuda->fused, device, k, l);
}

static struct weft_cuda_launch
launch_on (const struct weft_kernel *k, struct weft_cuda_blas *blas, uint8_t warpgroups,
           const struct weft_gpu_scratch *room, weft_gpu_stream *stream)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);

  l.stream = stream;
  l.scratch = room->at;
  l.scratch_bytes = room->bytes;
  l.blas = blas;
  l.warpgroups = warpgroups;
  return l;
}

static const char *
call_kernel (void *self, const struct weft_kernel *k, uint32_t n,
             const struct weft_gpu_scratch *room, weft_gpu_stream *stream)
{
  struct cuda *cuda = self;
  struct weft_cuda_blas *blas;
  int device = 0;
  const char *text = chosen (&device);

  text = text ? text : find_blas (self, &blas);
  const uint8_t most = text ? WEFT_NO_WARPGROUPS : warpgroups_of (cuda);
  for (uint32_t i = 0, some; i < n && !text; i += some) {
    struct weft_cuda_launch l[WEFT_CUDA_MOST_TOGETHER];
    some = MIN (n - i, WEFT_CUDA_MOST_TOGETHER);
    uint8_t warpgroups = weft_fused_warpgroups (cuda->fused, device, &k[i], most);
    for (uint32_t j = 0; j < some; j++)
      l[j] = launch_on (&k[i + j], blas, warpgroups, room, stream);
    text = launch_some (self, &k[i], l, some);
  }
  return text;
}

/* ----------------------------------------------------------------------- algorithms */

/* Loads the matrix product algorithms that earlier runs have chosen. A missing or invalid file is
 * ignored and written again. */
static void
load_algorithms (struct weft_cuda_blas *blas)
{
  g_autofree char *path = weft_blas_path (blas);
  uint32_t found;

  (void) weft_blas_load (blas, path, &found, NULL);
}

/* Saves the chosen matrix product algorithms. If this fails, the run continues, and the next run
 * chooses them again. */
static void
save_algorithms (const struct weft_cuda_blas *blas)
{
  g_autofree char *path = weft_blas_path (blas);
  g_autoptr (GError) error = NULL;

  if (!weft_blas_save (blas, path, &error))
    g_warning ("the choice of matmul algorithms cannot be saved: %s", error->message);
}

/* Chooses the algorithm of a product. For matmul_wgrad, this includes whether the library sums the
 * gradient of a bias; the kernel of other products for this gradient is not called. */
static const char *
prepare_product (struct cuda *cuda, const struct weft_kernel *k,
                 const struct weft_gpu_scratch *room, weft_gpu_stream *stream)
{
  struct weft_kernel alone = *k;
  uint32_t bias = weft_op_info[k->kind].bias_gradient;

  if (bias && k->kind != WEFT_OP_MATMUL_WGRAD)
    alone.operand[bias].data = NULL;
  return call_kernel (cuda, &alone, 1, room, stream);
}

/* Prepares fused attention: refuses the job if cuDNN is requested but missing; with
 * attention_backend = auto, measures all implementations. */
static const char *
prepare_fused (struct cuda *cuda, const struct weft_kernel *k, struct weft_cuda_blas *blas,
               const struct weft_gpu_scratch *room, weft_gpu_stream *stream)
{
  int device = 0;
  const char *text = k->fused ? chosen (&device) : NULL;

  if (text || !k->fused)
    return text;
  const struct weft_cuda_launch l = launch_on (k, blas, warpgroups_of (cuda), room, stream);
  weft_fused_load (cuda->fused, device, weft_blas_machine (blas));
  text = weft_fused_try (cuda->fused, device, k, &l, weft_blas_machine (blas));
  weft_fused_save (cuda->fused, device, weft_blas_machine (blas));
  return text ? text : weft_fused_missing (cuda->fused, device, k);
}

/* Loads the code of kernels, so that the first step loads no code while collectives run. Skips
 * kernels that need more scratch than `room` has. cuDNN loads its kernels with its plans. */
static const char *
load_kernels (struct cuda *cuda, const struct weft_kernel *k, uint32_t n,
              const struct weft_gpu_scratch *room, weft_gpu_stream *stream)
{
  const char *text;

  weft_cuda_load_only (TRUE);
  text = weft_cuda_load_joins (stream);
  for (uint32_t i = 0; i < n && !text; i++)
    if (weft_cuda_scratch (k[i].kind, &k[i].shape) <= room->bytes && !fuses (cuda, &k[i]))
      text = call_kernel (cuda, &k[i], 1, room, stream);
  weft_cuda_load_only (FALSE);
  return text;
}

/* All GPUs of a machine use the algorithms that the first of these GPUs has chosen. */
static const char *
prepare (void *self, const struct weft_kernel *k, uint32_t n, const struct weft_gpu_scratch *room,
         weft_gpu_stream *stream)
{
  struct weft_cuda_blas *blas;
  const char *text = find_blas (self, &blas);

  if (text)
    return text;
  load_algorithms (blas);
  uint32_t known = weft_blas_count (blas);
  weft_blas_only_prepare (blas, TRUE);
  for (uint32_t i = 0; i < n && !text; i++)
    text = weft_op_is_product (k[i].kind) ? prepare_product (self, &k[i], room, stream)
                                  : prepare_fused (self, &k[i], blas, room, stream);
  weft_blas_only_prepare (blas, FALSE);
  if (!text && weft_blas_count (blas) > known)
    save_algorithms (blas);
  return text ? text : load_kernels (self, k, n, room, stream);
}

static const char *
call_host (void *self, void (*run) (void *data), void *data, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaLaunchHostFunc (stream_of (stream), run, data));
}

/* Pinned memory has the same address on host and device. */
static const char *
call_mark (void *self, uint32_t *word, uint32_t value, weft_gpu_stream *stream)
{
  struct cuda *cuda = self;

  return cuda->write ((CUstream) stream_of (stream), (CUdeviceptr) (uintptr_t) word, value, 0)
             ? "the driver wrote no progress (cuStreamWriteValue32)"
             : NULL;
}

static const char *
call_join (void *self, const struct weft_gpu_join *join, weft_gpu_stream *stream)
{
  (void) self;
  return weft_cuda_join_terms (join, stream);
}

static const char *
call_exchange (void *self, const struct weft_gpu_exchange *x, weft_gpu_stream *stream)
{
  (void) self;
  return weft_cuda_exchange_rows (x, stream);
}

/* -------------------------------------------------------------------- communicators */

static const char *
call_comm_id (void *self, struct weft_gpu_id *out)
{
  ncclUniqueId id;
  const char *text = told (ncclGetUniqueId (&id));

  (void) self;
  G_STATIC_ASSERT (sizeof id == sizeof *out);
  if (!text)
    memcpy (out, &id, sizeof id);
  return text;
}

/* If `result` is a success, stores the new communicator in *out. Inside a group of calls, the
 * communicator is usable only after the end of the group. */
static const char *
keep (weft_gpu_comm *comm, ncclResult_t result, weft_gpu_comm **out)
{
  if (is_well (result))
    *out = comm;
  else
    g_free (comm);
  return told (result);
}

#define MOST_CTAS 32u /* maximum of ncclConfig_t.maxCTAs (NCCL user guide) */

static ncclConfig_t
config_of (const struct weft_gpu_member *member)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

  config.blocking = 0;
  if (member->most_ctas)
    config.maxCTAs = (int) MIN (member->most_ctas, MOST_CTAS);
  return config;
}

static const char *
call_comm_open (void *self, const struct weft_gpu_member *member, weft_gpu_comm **out)
{
  weft_gpu_comm *comm = g_new0 (weft_gpu_comm, 1);
  ncclConfig_t config = config_of (member);
  ncclUniqueId id;

  (void) self;
  memcpy (&id, member->id, sizeof id);
  return keep (
      comm, ncclCommInitRankConfig (&comm->comm, (int) member->n, id, (int) member->rank, &config),
      out);
}

static const char *
call_comm_split (void *self, weft_gpu_comm *parent, int color, const struct weft_gpu_member *m,
                 weft_gpu_comm **out)
{
  weft_gpu_comm *comm = g_new0 (weft_gpu_comm, 1);
  ncclConfig_t config = config_of (m);
  const char *text = keep (comm,
                           ncclCommSplit (parent->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color,
                                          (int) m->rank, &comm->comm, &config),
                           out);

  (void) self;
  return text;
}

static const char *
call_comm_close (void *self, weft_gpu_comm *comm)
{
  const char *text = comm->comm ? told (ncclCommDestroy (comm->comm)) : NULL;

  (void) self;
  g_free (comm);
  return text;
}

static const char *
call_comm_abort (void *self, weft_gpu_comm *comm)
{
  const char *text = comm->comm ? told (ncclCommAbort (comm->comm)) : NULL;

  (void) self;
  g_free (comm);
  return text;
}

/* comm->comm is NULL if this rank is not a member of the split communicator. */
static const char *
call_comm_ready (void *self, weft_gpu_comm *comm, gboolean *ready)
{
  ncclResult_t since = ncclSuccess;
  const char *text = comm->comm ? told (ncclCommGetAsyncError (comm->comm, &since)) : NULL;

  (void) self;
  *ready = since != ncclInProgress;
  return text ? text : told (since);
}

static const char *
call_comm_finish (void *self, weft_gpu_comm *comm)
{
  (void) self;
  return comm->comm ? told (ncclCommFinalize (comm->comm)) : NULL;
}

/* If members cannot access each other's memory, NCCL registers the memory without a symmetric
 * window. */
static const char *
call_window_open (void *self, weft_gpu_comm *comm, void *at, uint64_t bytes, gboolean symmetric,
                  weft_gpu_window **out)
{
  weft_gpu_window *window = g_new0 (weft_gpu_window, 1);
  ncclResult_t result = ncclSuccess;

  (void) self;
  if (symmetric && !ncclCommWindowRegister) {
    g_free (window);
    return WEFT_NCCL_OLD ("symmetric memory (nccl_ub)", "2.27");
  }
  result = symmetric ? ncclCommWindowRegister (comm->comm, at, bytes, &window->window,
                                               NCCL_WIN_COLL_SYMMETRIC)
                     : ncclCommRegister (comm->comm, at, bytes, &window->registered);
  if (is_well (result))
    *out = window;
  else
    g_free (window);
  return told (result);
}

static const char *
call_window_close (void *self, weft_gpu_comm *comm, weft_gpu_window *window)
{
  const char *text = NULL;

  (void) self;
  if (comm && window->window)
    text = told (ncclCommWindowDeregister (comm->comm, window->window));
  else if (comm && window->registered)
    text = told (ncclCommDeregister (comm->comm, window->registered));
  g_free (window);
  return text;
}

/* The data type of NCCL. Types that are never added are sent as bytes. */
static ncclDataType_t
type_of (enum weft_dtype dtype)
{
  static const ncclDataType_t types[WEFT_N_DTYPE] = {
    [WEFT_FP32] = ncclFloat32, [WEFT_BF16] = ncclBfloat16, [WEFT_FP16] = ncclFloat16,
    [WEFT_FP8] = ncclUint8,    [WEFT_INT32] = ncclInt32,   [WEFT_INT64] = ncclInt64,
    [WEFT_E8M0] = ncclUint8,   [WEFT_UINT8] = ncclUint8,   [WEFT_E5M2] = ncclUint8,
  };

  return types[dtype];
}

/* The bits of `value`, converted to a floating-point type, in the first bytes of the result. */
static uint64_t
scalar_of (enum weft_dtype dtype, float value)
{
  const uint16_t b = weft_bf16_round (value), h = weft_fp16_round (value);
  uint64_t bits = 0;

  if (dtype == WEFT_FP32)
    memcpy (&bits, &value, sizeof value);
  else
    memcpy (&bits, dtype == WEFT_BF16 ? &b : &h, sizeof b);
  return bits;
}

static const char *
call_scaled_open (void *self, weft_gpu_comm *comm, enum weft_dtype dtype, double factor, int *out)
{
  uint64_t scalar = scalar_of (dtype, (float) factor);
  ncclRedOp_t op;
  const char *text = told (ncclRedOpCreatePreMulSum (&op, &scalar, type_of (dtype),
                                                     ncclScalarHostImmediate, comm->comm));

  (void) self;
  *out = (int) op;
  return text;
}

static const char *
call_scaled_close (void *self, weft_gpu_comm *comm, int scaled)
{
  (void) self;
  return comm ? told (ncclRedOpDestroy ((ncclRedOp_t) scaled, comm->comm)) : NULL;
}

static const char *
call_group_start (void *self)
{
  (void) self;
  return told (ncclGroupStart ());
}

static const char *
call_group_end (void *self)
{
  const char *text = told (ncclGroupEnd ());

  weft_cupti_launched (((struct cuda *) self)->cupti);
  return text;
}

static ncclRedOp_t
reduction_of (const struct weft_gpu_collective *c)
{
  static const ncclRedOp_t reductions[] = { [WEFT_REDUCE_SUM] = ncclSum,
                                            [WEFT_REDUCE_AVG] = ncclAvg,
                                            [WEFT_REDUCE_MIN] = ncclMin,
                                            [WEFT_REDUCE_MAX] = ncclMax };

  return c->reduce == WEFT_REDUCE_PREMUL ? (ncclRedOp_t) c->scaled : reductions[c->reduce];
}

static const char *
call_collective (void *self, const struct weft_gpu_collective *c, weft_gpu_stream *stream)
{
  cudaStream_t on = stream_of (stream);
  ncclDataType_t type = type_of (c->dtype);
  ncclComm_t comm = c->comm->comm;

  weft_cupti_talk (((struct cuda *) self)->cupti, stream);
  switch (c->kind) {
  case WEFT_OP_ALL_REDUCE:
    return told (ncclAllReduce (c->from, c->to, c->n, type, reduction_of (c), comm, on));
  case WEFT_OP_REDUCE_SCATTER:
    return told (ncclReduceScatter (c->from, c->to, c->n, type, reduction_of (c), comm, on));
  case WEFT_OP_ALL_GATHER:
    return told (ncclAllGather (c->from, c->to, c->n, type, comm, on));
  case WEFT_OP_ALL_TO_ALL:
    return ncclAlltoAll ? told (ncclAlltoAll (c->from, c->to, c->n, type, comm, on))
                        : WEFT_NCCL_OLD ("all-to-all between GPUs", "2.28");
  case WEFT_OP_BROADCAST:
    return told (ncclBroadcast (c->from, c->to, c->n, type, (int) c->root, comm, on));
  default:
    return "NCCL has no such collective";
  }
}

static const char *
call_send (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  weft_cupti_talk (((struct cuda *) self)->cupti, stream);
  return told (ncclSend (t->data, t->n, type_of (t->dtype), (int) t->peer, t->comm->comm,
                         stream_of (stream)));
}

static const char *
call_recv (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  weft_cupti_talk (((struct cuda *) self)->cupti, stream);
  return told (ncclRecv (t->data, t->n, type_of (t->dtype), (int) t->peer, t->comm->comm,
                         stream_of (stream)));
}

/* --------------------------------------------------------------------------- graphs */

/* Capture is limited to this thread, because threads of NCCL make calls at the same time. */
static const char *
call_capture_start (void *self, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaStreamBeginCapture (stream_of (stream), cudaStreamCaptureModeThreadLocal));
}

static const char *
call_capture_end (void *self, weft_gpu_stream *stream, weft_gpu_graph **out)
{
  cudaGraph_t graph = NULL;
  const char *text = said (cudaStreamEndCapture (stream_of (stream), &graph));

  (void) self;
  if (text)
    return text;
  text = said (cudaGraphInstantiate ((cudaGraphExec_t *) (void *) out, graph, 0));
  cudaGraphDestroy (graph);
  return text;
}

static const char *
call_graph_run (void *self, weft_gpu_graph *graph, weft_gpu_stream *stream)
{
  (void) self;
  return said (cudaGraphLaunch ((cudaGraphExec_t) (void *) graph, stream_of (stream)));
}

static const char *
call_graph_close (void *self, weft_gpu_graph *graph)
{
  (void) self;
  return said (cudaGraphExecDestroy ((cudaGraphExec_t) (void *) graph));
}

/* -------------------------------------------------------------------------- opening */

static const char *
find_write (write_word *out)
{
  enum cudaDriverEntryPointQueryResult found;
  void *symbol = NULL;
  const char *text = said (cudaGetDriverEntryPointByVersion ("cuStreamWriteValue32", &symbol, 12000,
                                                             cudaEnableDefault, &found));

  if (!text && found != cudaDriverEntryPointSuccess)
    text = "the driver has no cuStreamWriteValue32";
  memcpy (out, &symbol, sizeof *out);
  return text;
}

const struct weft_gpu_calls *weft_gpu_calls_open (const char **why);

const struct weft_gpu_calls *
weft_gpu_calls_open (const char **why)
{
  struct cuda *cuda = g_new0 (struct cuda, 1);

  cuda->warpgroups = weft_driver_warpgroups_named (g_getenv ("WEFT_WARPGROUPS"));
#define CALL(name, ...) .name = call_##name,
  cuda->calls = (struct weft_gpu_calls){ .self = cuda,
                                          .has_kernel = has_kernel,
                                          .scratch = scratch,
                                          .fuses = fuses,
                                          .prepare = prepare,
                                          .trace_open = trace_open,
                                          .trace_take = trace_take,
                                          .room = room,
                                          .libraries = weft_cuda_libraries,
                                          WEFT_GPU_CALL_LIST (CALL) };
#undef CALL
  cuda->fused = weft_fused_new (NULL);
  if (!(*why = weft_driver_missing ()) && !(*why = find_write (&cuda->write))) {
    weft_driver_compiles (WEFT_CUDA_QUICK);
    return &cuda->calls;
  }
  weft_fused_free (cuda->fused);
  g_free (cuda);
  return NULL;
}
