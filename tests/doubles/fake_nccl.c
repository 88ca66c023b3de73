#include "kernels/float.h"
#include "tests/doubles/fake_cuda.h"
#include <nccl.h>
#include <string.h>

enum { LOOKS = 3 }; /* polls of a communicator until the launch of its group has ended */

struct ncclComm {
  weft_gpu_comm *comm; /* the communicator of computing_cuda.h that does the work */
  ncclResult_t state;
  const void *owner; /* host thread whose open group contains calls of this communicator */
  gboolean finalized;
  uint32_t n_registered; /* number of registered windows, buffers and operators */
};

struct operator {
  struct ncclComm *comm;
  int scaled;
  gboolean there;
};

/* A handle that a group will create. The caller may read the handle only after the group has been
 * launched. */
struct promise {
  void **to, *what;
};
struct split {
  struct ncclComm *parent, **to;
  int color, key;
};

/* The state of a host thread: its open group, and the group that is being launched. */
struct thread {
  int depth;
  gboolean missed; /* TRUE: the last ncclGroupStart() failed, so the group is not open */
  ncclResult_t error;
  GPtrArray *comm, *aborted;
  GArray *promise, *split;
  gboolean launching;
  uint32_t looks;
  GPtrArray *stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the following variables */
static GPtrArray *threads;
/* Number of the current fake_nccl_begin(). The state of a thread is invalid if it has another
 * number. */
static uint32_t generation;
static GPtrArray *launching; /* streams on which an NCCL launch has not been enqueued yet */
static GArray *operators;
static gint n_groups, n_comms, n_windows, n_memory;
static char words[256];
/* Text of the first rule that calls broke before the call that the test lets fail; NULL: none. */
static const char *broken;

static void
clear_group (struct thread *t)
{
  g_clear_pointer (&t->promise, g_array_unref);
  g_clear_pointer (&t->split, g_array_unref);
  g_clear_pointer (&t->comm, g_ptr_array_unref);
  g_clear_pointer (&t->stream, g_ptr_array_unref);
}

static void
free_thread (void *data)
{
  clear_group (data);
  g_free (data);
}

/* Returns the state of the calling thread. The state exists longer than the thread; the test frees
 * it. */
static struct thread *
this_thread (void)
{
  static _Thread_local struct thread *mine;
  static _Thread_local uint32_t born;

  if (born == generation)
    return mine;
  born = generation;
  mine = g_new0 (struct thread, 1);
  pthread_mutex_lock (&lock);
  g_ptr_array_add (threads, mine);
  pthread_mutex_unlock (&lock);
  return mine;
}
#define here (*this_thread ())

void
fake_nccl_begin (void)
{
  generation++;
  g_clear_pointer (&threads, g_ptr_array_unref);
  threads = g_ptr_array_new_with_free_func (free_thread);
  g_clear_pointer (&launching, g_ptr_array_unref);
  g_clear_pointer (&operators, g_array_unref);
  launching = g_ptr_array_new ();
  operators = g_array_new (FALSE, FALSE, sizeof (struct operator));
  n_groups = n_comms = n_windows = n_memory = 0;
  broken = NULL;
}

const char *
fake_nccl_left (void)
{
  return broken           ? broken
         : n_groups       ? "a group"
         : launching->len ? "a launch"
         : n_comms        ? "a communicator"
         : n_windows      ? "a window, or registered memory"
         : n_memory       ? "memory of NCCL"
                          : NULL;
}

gboolean
fake_nccl_launches_on (const void *stream)
{
  pthread_mutex_lock (&lock);
  gboolean found = g_ptr_array_find (launching, stream, NULL);
  pthread_mutex_unlock (&lock);
  return found;
}

/* Returns an error with a text. If the call is inside a group, ncclGroupEnd() returns the error
 * too. */
static ncclResult_t
refuse (const char *why)
{
  g_strlcpy (words, why, sizeof words);
  if (!fake_cuda_has_failed ())
    broken = why;
  if (here.depth)
    here.error = ncclInvalidUsage;
  return ncclInvalidUsage;
}

static ncclResult_t
told (const char *said)
{
  return said ? refuse (said) : ncclSuccess;
}

#define MAY_FAIL                                                                                   \
  if (fake_cuda_fails ())                                                                          \
  return refuse ("the test wants this call to fail")
#define READY(comm)                                                                                \
  MAY_FAIL;                                                                                        \
  if ((comm)->state != ncclSuccess)                                                                \
  return refuse ("a communicator is used before its last call has begun")

const char *
ncclGetLastError (ncclComm_t comm)
{
  (void) comm;
  return words;
}

const char *
ncclGetErrorString (ncclResult_t result)
{
  return result == ncclSuccess ? "no error" : "an error of NCCL";
}

/* ---------------------------------------------------------------------------- groups */

static void
join_group (struct ncclComm *comm)
{
  if (!here.comm)
    here.comm = g_ptr_array_new ();
  if (!g_ptr_array_find (here.comm, comm, NULL))
    g_ptr_array_add (here.comm, comm);
}

static void
promise (void **to, void *what)
{
  const struct promise one = { to, what };

  if (!here.promise)
    here.promise = g_array_new (FALSE, FALSE, sizeof (struct promise));
  *to = NULL;
  g_array_append_val (here.promise, one);
}

static struct ncclComm *
new_comm (weft_gpu_comm *comm)
{
  struct ncclComm *made = g_new0 (struct ncclComm, 1);

  made->comm = comm;
  g_atomic_int_inc (&n_comms);
  return made;
}

/* Splits a communicator when all members have called. Size and ranks of the new communicator follow
 * from color and key. */
static ncclResult_t
make_split (const struct split *s)
{
  struct weft_gpu_member member = { 0 };
  weft_gpu_comm *made = NULL;

  for (uint32_t i = 0; i < here.split->len; i++) {
    const struct split *other = &g_array_index (here.split, struct split, i);
    member.n += other->color == s->color;
    member.rank += other->color == s->color && other->key < s->key;
  }
  ncclResult_t result = told (FAKE_CALL (comm_split, s->parent->comm, s->color, &member, &made));
  *s->to = made ? new_comm (made) : NULL;
  return result;
}

static ncclResult_t
make_splits (void)
{
  ncclResult_t result = ncclSuccess;

  for (uint32_t i = 0; here.split && i < here.split->len && result == ncclSuccess; i++)
    result = make_split (&g_array_index (here.split, struct split, i));
  g_clear_pointer (&here.split, g_array_unref);
  return result;
}

ncclResult_t
ncclGroupStart (void)
{
  here.missed = fake_cuda_fails ();
  if (here.missed || here.launching)
    return refuse (here.missed ? "the test wants this call to fail"
                               : "a group begins before the last one has");
  if (here.depth++)
    return ncclSuccess;
  g_atomic_int_inc (&n_groups);
  return told (FAKE_CALL (group_start));
}

static void
set_streams (gboolean launches)
{
  pthread_mutex_lock (&lock);
  for (uint32_t i = 0; here.stream && i < here.stream->len; i++)
    if (launches)
      g_ptr_array_add (launching, g_ptr_array_index (here.stream, i));
    else
      g_ptr_array_remove (launching, g_ptr_array_index (here.stream, i));
  pthread_mutex_unlock (&lock);
  if (!launches)
    g_clear_pointer (&here.stream, g_ptr_array_unref);
}

/* Launches a group. As in NCCL, a thread that was started for this group makes the launch. */
static void
launch (void)
{
  ncclResult_t state = told (FAKE_CALL (group_end));

  state = state ? state : make_splits ();
  here.launching = FALSE;
  set_streams (FALSE);
  for (uint32_t i = 0; here.promise && i < here.promise->len; i++) {
    const struct promise *p = &g_array_index (here.promise, struct promise, i);
    *p->to = p->what;
  }
  for (uint32_t i = 0; i < here.comm->len; i++)
    __atomic_store_n (&((struct ncclComm *) g_ptr_array_index (here.comm, i))->state, state,
                      __ATOMIC_RELEASE);
  clear_group (&here);
}

/* Frees a communicator. When the last communicator is freed, all launches that are still pending
 * are dropped. */
static void
free_comm (void *data)
{
  struct ncclComm *comm = data;

  FAKE_CALL (comm_abort, comm->comm);
  if (g_atomic_int_dec_and_test (&n_comms))
    g_ptr_array_set_size (launching, 0);
  g_free (comm);
}

static ncclResult_t
end_group (void)
{
  ncclResult_t error = here.error;

  here.error = ncclSuccess;
  g_clear_pointer (&here.aborted, g_ptr_array_unref);
  if (error || !here.comm || here.comm->len == 0) {
    const char *said = FAKE_CALL (group_end);
    clear_group (&here);
    return error ? error : told (said);
  }
  for (uint32_t i = 0; i < here.comm->len; i++) {
    struct ncclComm *comm = g_ptr_array_index (here.comm, i);
    comm->owner = &here;
    comm->state = ncclInProgress;
  }
  here.launching = TRUE;
  here.looks = 0;
  set_streams (TRUE);
  return ncclInProgress;
}

ncclResult_t
ncclGroupEnd (void)
{
  gboolean fails = fake_cuda_fails ();

  if (here.depth == 0)
    return refuse ("ncclGroupEnd: not in a group");
  if (fails)
    refuse ("the test wants this call to fail");
  if (--here.depth)
    return ncclSuccess;
  g_atomic_int_add (&n_groups, -1);
  return end_group ();
}

/* -------------------------------------------------------------------- communicators */

ncclResult_t
ncclCommGetAsyncError (ncclComm_t comm, ncclResult_t *asyncError)
{
  MAY_FAIL;
  if (here.launching && comm->owner == &here && ++here.looks >= LOOKS)
    launch ();
  *asyncError = __atomic_load_n (&comm->state, __ATOMIC_ACQUIRE);
  return ncclSuccess;
}

ncclResult_t
ncclGetUniqueId (ncclUniqueId *uniqueId)
{
  MAY_FAIL;
  return told (FAKE_CALL (comm_id, (struct weft_gpu_id *) (void *) uniqueId));
}

static gboolean
is_config (const ncclConfig_t *config)
{
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;

  return config->size == fresh.size && config->magic == fresh.magic &&
         config->version == fresh.version && config->blocking == 0 &&
         (config->maxCTAs == NCCL_CONFIG_UNDEF_INT ||
          (config->maxCTAs >= 1 && config->maxCTAs <= 32));
}

ncclResult_t
ncclCommInitRankConfig (ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                        ncclConfig_t *config)
{
  const struct weft_gpu_member member = { .id =
                                               (const struct weft_gpu_id *) (const void *) &commId,
                                           .n = (uint32_t) nranks,
                                           .rank = (uint32_t) rank };
  weft_gpu_comm *made;

  MAY_FAIL;
  if (!is_config (config) || here.depth == 0)
    return refuse ("the configuration is blocking or not initialised, or there is no group");
  ncclResult_t result = told (FAKE_CALL (comm_open, &member, &made));
  if (result)
    return result;
  *comm = new_comm (made);
  join_group (*comm);
  return ncclInProgress;
}

/* Creates a communicator from a split. It exists only when all members have called. */
ncclResult_t
ncclCommSplit (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
  const struct split split = { comm, newcomm, color, key };

  READY (comm);
  if (!is_config (config) || here.depth == 0 || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
    return refuse ("the configuration is blocking or not initialised, or group or color is wrong");
  *newcomm = NULL;
  join_group (comm);
  if (!here.split)
    here.split = g_array_new (FALSE, FALSE, sizeof split);
  g_array_append_val (here.split, split);
  return ncclInProgress;
}

ncclResult_t
ncclCommFinalize (ncclComm_t comm)
{
  READY (comm);
  if (comm->finalized || comm->n_registered)
    return refuse ("a communicator is finalized twice, or with windows or operators");
  comm->finalized = TRUE;
  join_group (comm);
  return ncclInProgress;
}

ncclResult_t
ncclCommDestroy (ncclComm_t comm)
{
  if (comm->state != ncclSuccess || !comm->finalized)
    return refuse ("a communicator is destroyed before it has been finalized");
  free_comm (comm);
  return ncclSuccess;
}

/* Aborts a communicator. Inside a group, the abort happens when the group ends. */
ncclResult_t
ncclCommAbort (ncclComm_t comm)
{
  if (here.depth == 0 && g_atomic_int_get (&n_comms) > 1 && !here.missed)
    return refuse ("a communicator is aborted while another one, which it may wait for, is not");
  g_atomic_int_add (&n_windows, -(gint) comm->n_registered);
  if (here.depth == 0) {
    free_comm (comm);
    return ncclSuccess;
  }
  if (!here.aborted)
    here.aborted = g_ptr_array_new_with_free_func (free_comm);
  g_ptr_array_add (here.aborted, comm);
  return ncclSuccess;
}

/* ---------------------------------------------------------------- registered, operators */

ncclResult_t
ncclMemAlloc (void **ptr, size_t size)
{
  MAY_FAIL;
  ncclResult_t result = told (FAKE_CALL (alloc, WEFT_POOL_SYMMETRIC, size, ptr));
  g_atomic_int_add (&n_memory, result == ncclSuccess);
  return result;
}

ncclResult_t
ncclMemFree (void *ptr)
{
  g_atomic_int_add (&n_memory, -1);
  return g_atomic_int_get (&n_windows) ? refuse ("registered memory is freed")
                                       : told (FAKE_CALL (release, WEFT_POOL_SYMMETRIC, ptr));
}

static void
count_registered (struct ncclComm *comm, int more)
{
  g_atomic_int_add (&n_windows, more);
  comm->n_registered += (uint32_t) more;
}

/* Registers a window. As in NCCL, the window exists only when all members of the communicator have
 * called. */
ncclResult_t
ncclCommWindowRegister (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
  READY (comm);
  if (!buff || size == 0 || winFlags != NCCL_WIN_COLL_SYMMETRIC || here.depth == 0)
    return refuse ("a window is empty, or is opened outside of a group");
  count_registered (comm, 1);
  join_group (comm);
  promise ((void **) win, comm);
  return ncclInProgress;
}

ncclResult_t
ncclCommWindowDeregister (ncclComm_t comm, ncclWindow_t win)
{
  if (comm->state != ncclSuccess || (void *) win != (void *) comm)
    return refuse ("a window is released by another communicator or by a busy one");
  count_registered (comm, -1);
  return ncclSuccess;
}

ncclResult_t
ncclCommRegister (const ncclComm_t comm, void *buff, size_t size, void **handle)
{
  READY (comm);
  if (!buff || size == 0)
    return refuse ("the window is not registered");
  count_registered (comm, 1);
  *handle = comm;
  return ncclSuccess;
}

ncclResult_t
ncclCommDeregister (const ncclComm_t comm, void *handle)
{
  return ncclCommWindowDeregister (comm, handle);
}

static enum weft_dtype
dtype_of (ncclDataType_t type)
{
  return type == ncclFloat32    ? WEFT_FP32
         : type == ncclBfloat16 ? WEFT_BF16
         : type == ncclFloat16  ? WEFT_FP16
         : type == ncclInt32    ? WEFT_INT32
         : type == ncclInt64    ? WEFT_INT64
                                : WEFT_UINT8;
}

ncclResult_t
ncclRedOpCreatePreMulSum (ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                          ncclScalarResidence_t residence, ncclComm_t comm)
{
  struct operator made = { .comm = comm, .there = TRUE };
  float factor;
  uint16_t half;

  READY (comm);
  memcpy (&factor, scalar, sizeof factor);
  memcpy (&half, scalar, sizeof half);
  if (residence != ncclScalarHostImmediate)
    return refuse ("the factor is not in host memory");
  factor = datatype == ncclBfloat16  ? weft_bf16_float (half)
           : datatype == ncclFloat16 ? weft_fp16_float (half)
                                     : factor;
  ncclResult_t result =
      told (FAKE_CALL (scaled_open, comm->comm, dtype_of (datatype), factor, &made.scaled));
  pthread_mutex_lock (&lock);
  *op = (ncclRedOp_t) (ncclNumOps + operators->len);
  g_array_append_val (operators, made);
  pthread_mutex_unlock (&lock);
  count_registered (comm, result == ncclSuccess);
  return result;
}

static struct operator *
operator_of (ncclRedOp_t op, const struct ncclComm *comm)
{
  uint32_t at = (uint32_t) op - ncclNumOps;

  pthread_mutex_lock (&lock);
  struct operator *found = at < operators->len ? &g_array_index (operators, struct operator, at)
                                               : NULL;
  pthread_mutex_unlock (&lock);
  return found && found->there && found->comm == comm ? found : NULL;
}

ncclResult_t
ncclRedOpDestroy (ncclRedOp_t op, ncclComm_t comm)
{
  struct operator *found = operator_of (op, comm);

  if (!found || comm->state != ncclSuccess)
    return refuse ("an operator is released by another communicator or by a busy one");
  found->there = FALSE;
  count_registered (comm, -1);
  return told (FAKE_CALL (scaled_close, comm->comm, found->scaled));
}

/* ------------------------------------------------------------------------ collectives */

/* Makes a collective call. A call outside of a group is a group of one call. */
static ncclResult_t
talk (struct weft_gpu_collective c, ncclRedOp_t op, struct ncclComm *comm, cudaStream_t stream)
{
  static const uint8_t reduce[] = { [ncclSum] = WEFT_REDUCE_SUM,
                                    [ncclMax] = WEFT_REDUCE_MAX,
                                    [ncclMin] = WEFT_REDUCE_MIN,
                                    [ncclAvg] = WEFT_REDUCE_AVG };
  const struct operator *own = op >= ncclNumOps ? operator_of (op, comm) : NULL;

  READY (comm);
  if (here.depth == 0 || (op >= ncclNumOps && !own))
    return refuse ("communication outside of a group, or with an operator of another communicator");
  c.comm = comm->comm;
  c.reduce = own ? WEFT_REDUCE_PREMUL : reduce[op];
  c.scaled = own ? own->scaled : 0;
  join_group (comm);
  if (!here.stream)
    here.stream = g_ptr_array_new ();
  g_ptr_array_add (here.stream, stream);
  return told (FAKE_CALL (collective, &c, (weft_gpu_stream *) stream));
}

#define COLLECTIVE(kind_, from_, to_, n_, type)                                                    \
  (struct weft_gpu_collective)                                                                    \
  {                                                                                                \
    .kind = kind_, .from = from_, .to = to_, .n = n_, .dtype = dtype_of (type)                     \
  }

ncclResult_t
ncclAllReduce (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  return talk (COLLECTIVE (WEFT_OP_ALL_REDUCE, sendbuff, recvbuff, count, datatype), op, comm,
               stream);
}

ncclResult_t
ncclReduceScatter (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  return talk (COLLECTIVE (WEFT_OP_REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype), op,
               comm, stream);
}

ncclResult_t
ncclAllGather (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
               ncclComm_t comm, cudaStream_t stream)
{
  return talk (COLLECTIVE (WEFT_OP_ALL_GATHER, sendbuff, recvbuff, sendcount, datatype), ncclSum,
               comm, stream);
}

ncclResult_t
ncclAlltoAll (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
              ncclComm_t comm, cudaStream_t stream)
{
  return talk (COLLECTIVE (WEFT_OP_ALL_TO_ALL, sendbuff, recvbuff, count, datatype), ncclSum, comm,
               stream);
}

ncclResult_t
ncclBroadcast (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
               int root, ncclComm_t comm, cudaStream_t stream)
{
  struct weft_gpu_collective c =
      COLLECTIVE (WEFT_OP_BROADCAST, sendbuff, recvbuff, count, datatype);

  c.root = (uint32_t) root;
  return talk (c, ncclSum, comm, stream);
}

static ncclResult_t
transfer (gboolean recv, const struct weft_gpu_transfer *t, struct ncclComm *comm,
          cudaStream_t stream)
{
  READY (comm);
  if (here.depth == 0)
    return refuse ("communication outside of a group");
  join_group (comm);
  if (!here.stream)
    here.stream = g_ptr_array_new ();
  g_ptr_array_add (here.stream, stream);
  return told (recv ? FAKE_CALL (recv, t, (weft_gpu_stream *) stream)
                    : FAKE_CALL (send, t, (weft_gpu_stream *) stream));
}

ncclResult_t
ncclSend (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
          cudaStream_t stream)
{
  const struct weft_gpu_transfer t = { comm->comm, (void *) (uintptr_t) sendbuff, count,
                                        (uint8_t) dtype_of (datatype), (uint32_t) peer };
  return transfer (FALSE, &t, comm, stream);
}

ncclResult_t
ncclRecv (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
          cudaStream_t stream)
{
  const struct weft_gpu_transfer t = { comm->comm, recvbuff, count,
                                        (uint8_t) dtype_of (datatype), (uint32_t) peer };
  return transfer (TRUE, &t, comm, stream);
}
