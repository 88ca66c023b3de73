#include "kernels/cuda/blas.h"
#include "kernels/cuda/table.h"
#include "exec_gpu/cuda/module/sums.h"
#include "tests/doubles/fake_cuda.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>

computing_cuda *fake_device;
static uint64_t n_calls, fails_at;
static gint n_memory;

/* State of the CUDA runtime for each host thread. */
static _Thread_local struct {
  cudaError_t last;
  const char *words; /* text that cudaGetErrorString() returns for cudaErrorUnknown */
  int device;
  gboolean captures;
} here;

void
fake_cuda_begin (computing_cuda *device, uint64_t fail_at)
{
  fake_device = device;
  n_calls = 0;
  fails_at = fail_at;
  n_memory = 0;
  memset (&here, 0, sizeof here);
  fake_nccl_begin ();
}

uint64_t
fake_cuda_end (const char **left)
{
  *left = here.last       ? "a last error, which the next kernel would tell"
          : here.captures ? "a capture"
          : n_memory      ? "memory"
                          : fake_nccl_left ();
  return n_calls;
}

gboolean
fake_cuda_fails (void)
{
  return __atomic_add_fetch (&n_calls, 1, __ATOMIC_RELAXED) == fails_at;
}

gboolean
fake_cuda_has_failed (void)
{
  return fails_at && __atomic_load_n (&n_calls, __ATOMIC_RELAXED) >= fails_at;
}

static cudaError_t
keep (cudaError_t error)
{
  here.last = error ? error : here.last;
  return error;
}

static cudaError_t
told (const char *said)
{
  if (said)
    here.words = said;
  return keep (said ? cudaErrorUnknown : cudaSuccess);
}

/* MAY_FAIL returns an error if this call is the one that the test lets fail. ON does the same in a
 * call that enqueues work, and also returns an error if an NCCL launch on the stream is pending. */
#define MAY_FAIL                                                                                   \
  if (fake_cuda_fails ())                                                                          \
  return told ("the test wants this call to fail")
#define ON(stream)                                                                                 \
  MAY_FAIL;                                                                                        \
  if (fake_nccl_launches_on (stream))                                                              \
  return told ("work is enqueued on a stream with a pending NCCL launch")

cudaError_t
cudaGetLastError (void)
{
  cudaError_t last = here.last;

  here.last = cudaSuccess;
  return last;
}

const char *
cudaGetErrorString (cudaError_t error)
{
  return error == cudaErrorUnknown    ? here.words
         : error == cudaErrorNotReady ? "device not ready"
         : error == cudaSuccess       ? "no error"
                                      : "an error";
}

/* ------------------------------------------------------------------- devices, memory */

cudaError_t
cudaDriverGetVersion (int *version)
{
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t
cudaGetDeviceCount (int *count)
{
  uint32_t n = 0;
  const char *said = FAKE_CALL (devices, &n);

  MAY_FAIL;
  *count = (int) n;
  return told (said);
}

cudaError_t
cudaGetDeviceProperties (struct cudaDeviceProp *prop, int device)
{
  (void) device;
  memset (prop, 0, sizeof *prop);
  g_strlcpy (prop->name, "fake", sizeof prop->name);
  prop->totalGlobalMem = (size_t) 1 << 40;
  prop->multiProcessorCount = 132;
  prop->major = 8;
  return cudaSuccess;
}

cudaError_t
cudaDeviceGetAttribute (int *value, enum cudaDeviceAttr attr, int device)
{
  (void) device;
  *value = attr == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
  return cudaSuccess;
}

cudaError_t
cudaSetDevice (int device)
{
  MAY_FAIL;
  here.device = device;
  return told (FAKE_CALL (choose, (uint32_t) device));
}

cudaError_t
cudaGetDevice (int *device)
{
  *device = here.device;
  return cudaSuccess;
}

cudaError_t
cudaMemGetInfo (size_t *free, size_t *total)
{
  MAY_FAIL;
  *free = *total = (size_t) 1 << 40;
  return cudaSuccess;
}

static cudaError_t
allocate (void **to, enum weft_pool pool, size_t size)
{
  MAY_FAIL;
  cudaError_t error = told (FAKE_CALL (alloc, pool, size, to));
  g_atomic_int_add (&n_memory, error == cudaSuccess);
  return error;
}

static cudaError_t
give_back (void *at, enum weft_pool pool)
{
  g_atomic_int_add (&n_memory, -1);
  cudaError_t error = told (FAKE_CALL (release, pool, at));
  MAY_FAIL; /* the real cudaFree() frees the memory even if it returns an error */
  return error;
}

cudaError_t
cudaMalloc (void **devPtr, size_t size)
{
  return allocate (devPtr, WEFT_POOL_DEVICE, size);
}

cudaError_t
cudaHostAlloc (void **pHost, size_t size, unsigned int flags)
{
  (void) flags;
  return allocate (pHost, WEFT_POOL_HOST, size);
}

cudaError_t
cudaFree (void *devPtr)
{
  return give_back (devPtr, WEFT_POOL_DEVICE);
}

cudaError_t
cudaFreeHost (void *ptr)
{
  return give_back (ptr, WEFT_POOL_HOST);
}

/* ------------------------------------------------------------------- streams, events */

cudaError_t
cudaDeviceGetStreamPriorityRange (int *leastPriority, int *greatestPriority)
{
  *leastPriority = 0;
  *greatestPriority = -5;
  return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithPriority (cudaStream_t *pStream, unsigned int flags, int priority)
{
  MAY_FAIL;
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
    return told ("a stream waits for the legacy stream, or has an unknown priority");
  return told (FAKE_CALL (stream_open, priority < 0, (weft_gpu_stream **) pStream));
}

cudaError_t
cudaStreamDestroy (cudaStream_t stream)
{
  cudaError_t error = told (FAKE_CALL (stream_close, (weft_gpu_stream *) stream));

  MAY_FAIL;
  return error;
}

cudaError_t
cudaEventCreateWithFlags (cudaEvent_t *event, unsigned int flags)
{
  MAY_FAIL;
  return told (
      FAKE_CALL (event_open, !(flags & cudaEventDisableTiming), (weft_gpu_event **) event));
}

cudaError_t
cudaEventDestroy (cudaEvent_t event)
{
  cudaError_t error = told (FAKE_CALL (event_close, (weft_gpu_event *) event));

  MAY_FAIL;
  return error;
}

cudaError_t
cudaEventRecord (cudaEvent_t event, cudaStream_t stream)
{
  ON (stream);
  return told (FAKE_CALL (record, (weft_gpu_event *) event, (weft_gpu_stream *) stream));
}

cudaError_t
cudaEventRecordWithFlags (cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
  if (flags != cudaEventRecordExternal)
    return cudaEventRecord (event, stream);
  ON (stream);
  return !here.captures
             ? told ("an event is recorded as external outside of a capture")
             : told (FAKE_CALL (stamp, (weft_gpu_event *) event, (weft_gpu_stream *) stream));
}

cudaError_t
cudaStreamWaitEvent (cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
  (void) flags;
  ON (stream);
  return told (FAKE_CALL (wait, (weft_gpu_stream *) stream, (weft_gpu_event *) event));
}

cudaError_t
cudaEventQuery (cudaEvent_t event)
{
  gboolean done = FALSE;

  MAY_FAIL;
  if (here.captures)
    return told ("an event is queried in a capture");
  const char *said = FAKE_CALL (query, (weft_gpu_event *) event, &done);
  return said ? told (said) : keep (done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t
cudaEventElapsedTime (float *ms, cudaEvent_t start, cudaEvent_t end)
{
  double seconds = 0;

  MAY_FAIL;
  const char *said =
      FAKE_CALL (elapsed, (weft_gpu_event *) start, (weft_gpu_event *) end, &seconds);
  *ms = (float) (1e3 * seconds);
  return told (said);
}

cudaError_t
cudaStreamSynchronize (cudaStream_t stream)
{
  ON (stream);
  return here.captures ? told ("the host waits for a stream in a capture")
                       : told (FAKE_CALL (finish, (weft_gpu_stream *) stream));
}

/* ----------------------------------------------------------------------------- work */

cudaError_t
cudaMemcpyAsync (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                 cudaStream_t stream)
{
  const struct weft_gpu_copy copy = { kind == cudaMemcpyHostToDevice   ? WEFT_GPU_TO_DEVICE
                                       : kind == cudaMemcpyDeviceToHost ? WEFT_GPU_TO_HOST
                                                                        : WEFT_GPU_ON_DEVICE,
                                       dst, src, count };

  ON (stream);
  return told (FAKE_CALL (copy, &copy, (weft_gpu_stream *) stream));
}

cudaError_t
cudaMemsetAsync (void *devPtr, int value, size_t count, cudaStream_t stream)
{
  ON (stream);
  return told (FAKE_CALL (fill, devPtr, (uint8_t) value, count, (weft_gpu_stream *) stream));
}

cudaError_t
cudaLaunchHostFunc (cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
  ON (stream);
  return told (FAKE_CALL (host, fn, userData, (weft_gpu_stream *) stream));
}

static CUresult
write_word (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
  (void) flags;
  return fake_nccl_launches_on (stream) ||
                 FAKE_CALL (mark, (uint32_t *) (uintptr_t) addr, value, (weft_gpu_stream *) stream)
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

cudaError_t
cudaGetDriverEntryPointByVersion (const char *symbol, void **funcPtr, unsigned int cudaVersion,
                                  unsigned long long flags,
                                  enum cudaDriverEntryPointQueryResult *driverStatus)
{
  CUresult (*write) (CUstream, CUdeviceptr, cuuint32_t, unsigned) = write_word;

  (void) cudaVersion, (void) flags;
  g_assert (g_str_equal (symbol, "cuStreamWriteValue32"));
  memcpy (funcPtr, &write, sizeof write);
  *driverStatus = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

/* The kernel launchers of the module call this function instead of CUDA's (tests/CMakeLists.txt).
 * It enqueues the launch, and returns an earlier error of the thread, as CUDA does. */
static const char *
launch (weft_gpu_stream *stream, const struct computing_item *item)
{
  if (fake_cuda_fails ())
    keep (told ("the test wants this call to fail"));
  else if (fake_nccl_launches_on (stream))
    keep (told ("a kernel is launched on a stream with a pending NCCL launch"));
  else
    keep (told (computing_add (fake_device, stream, item)));
  cudaError_t error = cudaGetLastError ();
  return error ? cudaGetErrorString (error) : NULL;
}

const char *fake_cuda_launch_all (enum weft_op_kind kind, const struct weft_cuda_launch *l,
                                  uint32_t n);
const char *
fake_cuda_launch_all (enum weft_op_kind kind, const struct weft_cuda_launch *l, uint32_t n)
{
  struct computing_item item = { .kind = COMPUTING_KERNEL, .n = n, .op = kind };

  if (weft_cuda_loads_only ())
    return weft_cuda_launch_all (kind, l, n);
  item.kernel = g_rc_box_dup (n * sizeof *l, (void *) (uintptr_t) l);
  const char *said = launch (l->stream, &item);
  g_rc_box_release (item.kernel);
  return said;
}

const char *fake_cuda_join_terms (const struct weft_gpu_join *join, void *stream);
const char *
fake_cuda_join_terms (const struct weft_gpu_join *join, void *stream)
{
  if (weft_cuda_loads_only ())
    return weft_cuda_join_terms (join, stream);
  return launch (stream, &(struct computing_item){ .kind = COMPUTING_JOIN, .join = *join });
}

const char *fake_cuda_exchange_rows (const struct weft_gpu_exchange *x, void *stream);
const char *
fake_cuda_exchange_rows (const struct weft_gpu_exchange *x, void *stream)
{
  return launch (stream, &(struct computing_item){ .kind = COMPUTING_EXCHANGE, .exchange = *x });
}

/* --------------------------------------------------------------------------- graphs */

cudaError_t
cudaStreamIsCapturing (cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  (void) stream;
  *status = here.captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t
cudaStreamBeginCapture (cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
  ON (stream);
  if (mode != cudaStreamCaptureModeThreadLocal)
    return told ("threads of NCCL make a call that this capture forbids all threads");
  here.captures = TRUE;
  return told (FAKE_CALL (capture_start, (weft_gpu_stream *) stream));
}

cudaError_t
cudaStreamEndCapture (cudaStream_t stream, cudaGraph_t *graph)
{
  const char *said =
      FAKE_CALL (capture_end, (weft_gpu_stream *) stream, (weft_gpu_graph **) graph);

  here.captures = FALSE;
  if (!said && !fake_cuda_fails ())
    return cudaSuccess;
  FAKE_CALL (graph_close, (weft_gpu_graph *) *graph);
  *graph = NULL;
  return told (said ? said : "the test wants this call to fail");
}

/* Returns the graph itself as executable graph. So a later cudaGraphDestroy() of the graph does
 * nothing. */
cudaError_t
cudaGraphInstantiate (cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
  g_assert (flags == 0);
  *pGraphExec = (cudaGraphExec_t) graph;
  return cudaSuccess;
}

cudaError_t
cudaGraphDestroy (cudaGraph_t graph)
{
  (void) graph;
  return cudaSuccess;
}

cudaError_t
cudaGraphLaunch (cudaGraphExec_t graphExec, cudaStream_t stream)
{
  ON (stream);
  return told (FAKE_CALL (graph_run, (weft_gpu_graph *) graphExec, (weft_gpu_stream *) stream));
}

cudaError_t
cudaGraphExecDestroy (cudaGraphExec_t graphExec)
{
  return told (FAKE_CALL (graph_close, (weft_gpu_graph *) graphExec));
}

/* ---------------------------------------------------------------------------- products */

/* Matmuls are the plain loops of emulated_blas.c, which has no algorithms to choose from. */
struct weft_cuda_blas *
weft_blas_new (const char **error)
{
  static char blas;

  *error = NULL;
  return (struct weft_cuda_blas *) (void *) &blas;
}

void
weft_blas_only_prepare (struct weft_cuda_blas *blas, gboolean on)
{
  (void) blas;
  weft_cuda_load_only (on);
}

uint32_t
weft_blas_count (const struct weft_cuda_blas *blas)
{
  (void) blas;
  return 0;
}

gboolean
weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error)
{
  (void) blas, (void) path, (void) error;
  return TRUE;
}

gboolean
weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found, GError **error)
{
  (void) blas, (void) path, (void) error;
  *found = 0;
  return TRUE;
}

const char *
weft_blas_machine (const struct weft_cuda_blas *blas)
{
  (void) blas;
  return "no GPU";
}

char *
weft_blas_path (const struct weft_cuda_blas *blas)
{
  (void) blas;
  return g_strdup ("nowhere");
}

void
weft_cuda_libraries (void *self, weft_gpu_take_library take, void *user)
{
  (void) self;
  take (user, &(struct weft_gpu_library){ "a fake", "1", NULL, NULL });
}
