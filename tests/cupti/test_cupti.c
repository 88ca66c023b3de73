/* exec_gpu/cuda/module/cupti.c on a double of CUPTI. The double delivers buffers of activity
 * records that the tests write. */
#include "exec_gpu/cuda/module/cupti.h"
#include "tests/runner/runner.h"
#include <pthread.h>
#include <string.h>

#define MOST 64

/* -------------------------------------------------------------------------- the double */

static struct {
  CUpti_BuffersCallbackRequestFunc wanted;
  CUpti_BuffersCallbackCompleteFunc filled;
  CUpti_CallbackFunc callback;
  uint64_t kinds; /* activity kinds that the caller has enabled, one bit for each */
  uint32_t n_callbacks, depth, device;
  gboolean is_held; /* the buffer contains the record of an activity that has not ended */
  uint64_t pushed;  /* external correlation id that a thread pushed last */
  size_t dropped;
  CUptiResult subscribed, next;
} fake;

static CUptiResult CUPTIAPI
enable_kind (CUpti_ActivityKind kind)
{
  fake.kinds |= (uint64_t) 1 << kind;
  return CUPTI_SUCCESS;
}

static gboolean
is_enabled (CUpti_ActivityKind kind)
{
  return fake.kinds >> kind & 1;
}

static CUptiResult CUPTIAPI
register_callbacks (CUpti_BuffersCallbackRequestFunc wanted,
                    CUpti_BuffersCallbackCompleteFunc filled)
{
  fake.wanted = wanted;
  fake.filled = filled;
  return CUPTI_SUCCESS;
}

static void end_buffer (void);

/* cuptiActivityFlushAll(): only a forced flush delivers a buffer that holds the record of a running
 * activity. */
static CUptiResult CUPTIAPI
flush (uint32_t flag)
{
  if (fake.is_held && flag == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) {
    fake.is_held = FALSE;
    end_buffer ();
  }
  return CUPTI_SUCCESS;
}

static size_t
size_of (const CUpti_Activity *a)
{
  switch ((int) a->kind) {
  case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
    return sizeof (CUpti_ActivityExternalCorrelation);
  case CUPTI_ACTIVITY_KIND_MEMCPY:
    return sizeof (CUpti_ActivityMemcpy6);
  case CUPTI_ACTIVITY_KIND_MEMSET:
    return sizeof (CUpti_ActivityMemset4);
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    return sizeof (weft_cupti_kernel);
  default:
    return sizeof (CUpti_ActivityAPI);
  }
}

static CUptiResult CUPTIAPI
next_record (uint8_t *buffer, size_t bytes, CUpti_Activity **record)
{
  uint8_t *at = *record ? (uint8_t *) *record + size_of (*record) : buffer;

  if (fake.next != CUPTI_SUCCESS)
    return fake.next;
  if (at >= buffer + bytes)
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity *) (void *) at;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
count_dropped (CUcontext context, uint32_t stream, size_t *n)
{
  (void) context, (void) stream;
  *n = fake.dropped;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
push_id (CUpti_ExternalCorrelationKind kind, uint64_t id)
{
  assert_int_equal (kind, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
  fake.pushed = id;
  fake.depth++;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
pop_id (CUpti_ExternalCorrelationKind kind, uint64_t *last)
{
  (void) kind;
  *last = fake.pushed;
  fake.depth--;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
subscribe (CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *user)
{
  (void) user;
  *handle = NULL;
  fake.callback = callback;
  return fake.subscribed;
}

static CUptiResult CUPTIAPI
enable_callback (uint32_t on, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                 CUpti_CallbackId id)
{
  (void) on, (void) handle, (void) domain, (void) id;
  fake.n_callbacks++;
  return CUPTI_SUCCESS;
}

/* In these tests, the handle of a graph node or stream is its id cast to a pointer. */
static CUptiResult CUPTIAPI
number_node (CUgraphNode node, uint64_t *id)
{
  *id = (uintptr_t) node;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
number_stream (CUcontext context, CUstream stream, uint8_t per_thread, uint32_t *id)
{
  (void) context, (void) per_thread;
  *id = (uint32_t) (uintptr_t) stream;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
number_device (CUcontext context, uint32_t *id)
{
  assert_null (context); /* a NULL context stands for the current context */
  *id = fake.device;
  return CUPTI_SUCCESS;
}

static CUptiResult CUPTIAPI
name_result (CUptiResult result, const char **text)
{
  *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "somebody else listens"
                                                                   : "a broken buffer";
  return CUPTI_SUCCESS;
}

static const struct weft_cupti_calls calls = { .ActivityEnable = enable_kind,
                                               .ActivityRegisterCallbacks = register_callbacks,
                                               .ActivityFlushAll = flush,
                                               .ActivityGetNextRecord = next_record,
                                               .ActivityGetNumDroppedRecords = count_dropped,
                                               .ActivityPushExternalCorrelationId = push_id,
                                               .ActivityPopExternalCorrelationId = pop_id,
                                               .Subscribe = subscribe,
                                               .EnableCallback = enable_callback,
                                               .GetGraphNodeId = number_node,
                                               .GetDeviceId = number_device,
                                               .GetStreamIdEx = number_stream,
                                               .GetResultString = name_result };

/* ------------------------------------------------------------------------- buffers */

static uint8_t *buffer;
static size_t room, used;

static void
begin_buffer (void)
{
  size_t most;

  fake.wanted (&buffer, &room, &most);
  assert_true (((uintptr_t) buffer & 7) == 0 && most == 0);
  used = 0;
}

static void
end_buffer (void)
{
  fake.filled (NULL, 0, buffer, room, used);
}

static void
put (const void *record, size_t bytes)
{
  assert_true (used + bytes <= room);
  memcpy (buffer + used, record, bytes);
  used += bytes;
}

static void
put_kernel (const char *name, uint64_t begin, uint32_t correlation, uint32_t stream, uint64_t node)
{
  const weft_cupti_kernel k = { .kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                .start = begin,
                                .end = begin ? begin + 10 : 0,
                                .correlationId = correlation,
                                .deviceId = fake.device,
                                .streamId = stream,
                                .name = name,
                                .graphNodeId = node };

  put (&k, sizeof k);
}

/* Writes the record that connects a launch with the id that was pushed when the launch was made. As
 * CUPTI does, writes the record only if runtime and driver calls are recorded. */
static void
put_known (uint32_t correlation, uint64_t id)
{
  const CUpti_ActivityExternalCorrelation x = { .kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                .externalKind =
                                                    CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                .externalId = id,
                                                .correlationId = correlation };

  if (is_enabled (CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) &&
      is_enabled (CUPTI_ACTIVITY_KIND_RUNTIME) && is_enabled (CUPTI_ACTIVITY_KIND_DRIVER))
    put (&x, sizeof x);
}

/* ------------------------------------------------------------------------- taking */

static struct {
  struct weft_gpu_activity at[MOST];
  uint32_t n;
  uint64_t lost;
  const char *said;
} taken;

static void
keep (void *user, const struct weft_gpu_activity *a)
{
  (void) user;
  taken.at[taken.n++] = *a;
}

static void
take (struct weft_cupti *c)
{
  taken.n = 0;
  taken.said = weft_cupti_take (c, keep, NULL, &taken.lost);
}

static void
assert_taken (uint32_t i, const char *name, int row, uint32_t op)
{
  const struct weft_gpu_activity *a = &taken.at[i];

  assert_true (i < taken.n);
  assert_string_equal (a->name, name);
  assert_int_equal (a->keyed, row >= 0);
  if (row >= 0) {
    assert_int_equal (a->row, row);
    assert_int_equal (a->op, op);
  }
}

static struct weft_cupti *
open_all (void)
{
  struct weft_cupti *c = NULL;

  memset (&fake, 0, sizeof fake);
  assert_null (weft_cupti_open (&calls, &c));
  return c;
}

/* --------------------------------------------------------------------------- tests */

static void
records_in_any_order_belong_to_the_op_whose_id_was_pushed (void **state)
{
  struct weft_cupti *c = open_all ();
  uint64_t first, second;

  (void) state;
  assert_true (is_enabled (CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) &&
               is_enabled (CUPTI_ACTIVITY_KIND_MEMCPY) &&
               is_enabled (CUPTI_ACTIVITY_KIND_MEMCPY2) &&
               is_enabled (CUPTI_ACTIVITY_KIND_MEMSET) && fake.n_callbacks == 2);
  weft_cupti_about (c, 0, 7);
  first = fake.pushed;
  weft_cupti_about (c, 3, 0);
  second = fake.pushed;
  weft_cupti_about (c, 3, 0); /* the op is still the same, so its id is not pushed again */
  assert_true (fake.depth == 1 && first != second);

  begin_buffer ();
  put_kernel ("late", 500, 12, 1, 0);
  put_kernel ("early", 100, 11, 1, 0);
  put_known (12, second);
  put_kernel ("also early", 200, 13, 1, 0);
  put_known (13, first);
  end_buffer ();
  begin_buffer (); /* the record with the id of the first kernel is only in this later buffer */
  put_known (11, first);
  end_buffer ();
  take (c);
  assert_null (taken.said);
  assert_int_equal (taken.n, 3);
  assert_taken (0, "early", 0, 7);
  assert_taken (1, "also early", 0, 7);
  assert_taken (2, "late", 3, 0);
  assert_true (taken.at[0].begin == 100 && taken.at[0].end == 110);
  take (c);
  /* A second call returns nothing: each activity is returned once. */
  assert_int_equal (taken.n, 0);
  weft_cupti_close (c);
}

static void
copies_and_fills_have_names_and_others_are_passed_over (void **state)
{
  struct weft_cupti *c = open_all ();
  CUpti_ActivityMemcpy6 copy = { .kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                 .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD,
                                 .start = 10,
                                 .end = 30,
                                 .correlationId = 1 };
  const CUpti_ActivityMemset4 fill = {
    .kind = CUPTI_ACTIVITY_KIND_MEMSET, .start = 40, .end = 41, .correlationId = 1
  };
  const CUpti_ActivityAPI api = { .kind = CUPTI_ACTIVITY_KIND_RUNTIME, .start = 1, .end = 2 };

  (void) state;
  weft_cupti_about (c, 1, WEFT_NO_OP);
  begin_buffer ();
  put (&api, sizeof api);
  put (&copy, sizeof copy);
  put (&fill, sizeof fill);
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
  copy.start = 50;
  put (&copy, sizeof copy);
  put_known (1, fake.pushed);
  end_buffer ();
  take (c);
  assert_int_equal (taken.n, 3);
  assert_taken (0, "copy to device", 1, WEFT_NO_OP);
  assert_taken (1, "fill", 1, WEFT_NO_OP);
  assert_taken (2, "copy to host", 1, WEFT_NO_OP);
  weft_cupti_close (c);
}

static void
kernels_of_nobody_are_told_as_such (void **state)
{
  struct weft_cupti *c = open_all ();

  (void) state;
  weft_cupti_about (c, 0, 1);
  begin_buffer ();
  put_kernel ("somebody's", 100, 40, 9, 0);
  put_kernel (NULL, 200, 41, 9, 0);
  end_buffer ();
  take (c);
  assert_int_equal (taken.n, 2);
  assert_taken (0, "somebody's", -1, 0);
  assert_taken (1, "a kernel", -1, 0);
  weft_cupti_close (c);
}

/* NCCL launches kernels in its own threads, which push no id. If a stream has as many kernels
 * without an id as Weft has launched collectives and transfers on the stream, kernels and launches
 * are matched in order. */
static void
launches_of_other_threads_go_by_the_order_of_their_stream (void **state)
{
  struct weft_cupti *c = open_all ();
  weft_gpu_stream *stream = (weft_gpu_stream *) (uintptr_t) 5;

  (void) state;
  for (uint32_t op = 20; op < 22; op++) {
    weft_cupti_about (c, 0, op);
    weft_cupti_talk (c, stream);
    weft_cupti_launched (c);
    weft_cupti_launched (c); /* has no effect, because no weft_cupti_talk() came before it */
  }
  begin_buffer ();
  put_kernel ("ncclDevKernel_b", 900, 61, 5, 0);
  put_kernel ("ncclDevKernel_a", 800, 60, 5, 0);
  put_kernel ("another", 850, 62, 6, 0);
  end_buffer ();
  take (c);
  assert_taken (0, "ncclDevKernel_a", 0, 20);
  assert_taken (1, "another", -1, 0);
  assert_taken (2, "ncclDevKernel_b", 0, 21);

  /* NCCL is announced once but launches two kernels, so these kernels are not matched with an
   * op. */
  weft_cupti_talk (c, stream);
  weft_cupti_launched (c);
  begin_buffer ();
  put_kernel ("ncclDevKernel_c", 1000, 63, 5, 0);
  put_kernel ("ncclDevKernel_d", 1100, 64, 5, 0);
  end_buffer ();
  take (c);
  assert_taken (0, "ncclDevKernel_c", -1, 0);
  assert_taken (1, "ncclDevKernel_d", -1, 0);
  weft_cupti_close (c);
}

/* Streams of two GPUs may have the same number. The records of these streams must not be mixed. */
static void
streams_of_two_gpus_are_told_apart (void **state)
{
  struct weft_cupti *c = open_all ();
  weft_gpu_stream *stream = (weft_gpu_stream *) (uintptr_t) 5;

  (void) state;
  for (fake.device = 0; fake.device < 2; fake.device++) {
    weft_cupti_about (c, fake.device, 30 + fake.device);
    weft_cupti_talk (c, stream);
    weft_cupti_launched (c);
  }
  begin_buffer ();
  fake.device = 1;
  put_kernel ("of the second", 100, 70, 5, 0);
  fake.device = 0;
  put_kernel ("of the first", 200, 71, 5, 0);
  end_buffer ();
  take (c);
  assert_taken (0, "of the second", 1, 31);
  assert_taken (1, "of the first", 0, 30);
  weft_cupti_close (c);
}

static void
what_is_under_way_does_not_keep_the_rest (void **state)
{
  struct weft_cupti *c = open_all ();

  (void) state;
  weft_cupti_about (c, 0, 1);
  begin_buffer ();
  put_kernel ("ended", 100, 1, 1, 0);
  put_known (1, fake.pushed);
  put_kernel ("under way", 0, 2, 1, 0);
  fake.is_held = TRUE;
  take (c);
  assert_int_equal (taken.n, 1);
  assert_taken (0, "ended", 0, 1);
  assert_true (taken.lost == 1 && !fake.is_held);
  weft_cupti_close (c);
}

static void
call_back (CUpti_CallbackId id, uintptr_t graph, uintptr_t node, uintptr_t from)
{
  CUpti_GraphData g = { .graph = (CUgraph) graph,
                        .node = (CUgraphNode) node,
                        .originalNode = (CUgraphNode) from };
  CUpti_ResourceData what = { .resourceDescriptor = &g };

  fake.callback (NULL, CUPTI_CB_DOMAIN_RESOURCE, id, &what);
}

/* Creates a graph node in another thread, as NCCL does while the executor's thread captures a
 * graph. */
static void *
add_node_13 (void *graph)
{
  call_back (CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, (uintptr_t) graph, 13, 0);
  return NULL;
}

static void
kernels_of_a_graph_go_by_the_nodes_that_were_captured (void **state)
{
  struct weft_cupti *c = open_all ();
  pthread_t other;

  (void) state;
  weft_cupti_about (c, 0, 4);
  call_back (CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, 1, 11, 0);
  weft_cupti_about (c, 0, 5);
  call_back (CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, 1, 12, 0);
  assert_int_equal (pthread_create (&other, NULL, add_node_13, (void *) (uintptr_t) 1), 0);
  pthread_join (other, NULL);
  weft_cupti_about (c, 0, WEFT_NO_OP);
  for (uintptr_t node = 11; node < 14; node++)
    call_back (CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, 2, node + 100, node);
  for (int run = 0; run < 2; run++) {
    begin_buffer ();
    put_known (70, fake.pushed); /* connects the call that launches the graph with the pushed id */
    put_kernel ("first", 100, 70, 1, 111);
    put_kernel ("second", 200, 70, 1, 112);
    put_kernel ("nccl", 300, 70, 1, 113);
    put_kernel ("unknown", 400, 70, 1, 999);
    end_buffer ();
    take (c);
    assert_taken (0, "first", 0, 4);
    assert_taken (1, "second", 0, 5);
    assert_taken (2, "nccl", 0, 5);
    assert_taken (3, "unknown", -1, 0);
  }
  weft_cupti_close (c);
}

static void
what_is_lost_or_broken_is_said (void **state)
{
  struct weft_cupti *c = open_all ();

  (void) state;
  fake.dropped = 3;
  begin_buffer ();
  put_kernel ("no dates", 0, 1, 1, 0);
  end_buffer ();
  take (c);
  assert_true (taken.n == 0 && taken.lost == 4 && !taken.said);
  fake.dropped = 0;
  take (c);
  assert_true (taken.lost == 0);
  begin_buffer (); /* delivers a buffer without records */
  end_buffer ();
  take (c);
  assert_true (taken.n == 0 && !taken.said);
  fake.next = CUPTI_ERROR_UNKNOWN;
  begin_buffer ();
  put_kernel ("what", 1, 1, 1, 0);
  end_buffer ();
  take (c);
  assert_string_equal (taken.said, "a broken buffer");
  weft_cupti_close (c);
}

static void
who_cannot_listen_says_why (void **state)
{
  struct weft_cupti *c = NULL;

  (void) state;
  memset (&fake, 0, sizeof fake);
  fake.subscribed = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  assert_string_equal (weft_cupti_open (&calls, &c), "somebody else listens");
  fake.subscribed = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  assert_non_null (strstr (weft_cupti_open (&calls, &c), "run as root"));
  assert_null (c);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (records_in_any_order_belong_to_the_op_whose_id_was_pushed),
  cmocka_unit_test (copies_and_fills_have_names_and_others_are_passed_over),
  cmocka_unit_test (kernels_of_nobody_are_told_as_such),
  cmocka_unit_test (launches_of_other_threads_go_by_the_order_of_their_stream),
  cmocka_unit_test (streams_of_two_gpus_are_told_apart),
  cmocka_unit_test (what_is_under_way_does_not_keep_the_rest),
  cmocka_unit_test (kernels_of_a_graph_go_by_the_nodes_that_were_captured),
  cmocka_unit_test (what_is_lost_or_broken_is_said),
  cmocka_unit_test (who_cannot_listen_says_why),
};

WEFT_TESTS (tests)
