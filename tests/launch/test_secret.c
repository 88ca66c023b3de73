/* The secret of a job. Without it, a client cannot join the job, and cannot read or change a
 * message. Also tests the file that contains the secret. */
#define _GNU_SOURCE /* memmem */
#include "launch/seal.h"
#include "launch/secret.h"
#include "launch/store.h"
#include "tests/launch/cast.h"
#include "tests/runner/folder.h"
#include "tests/runner/processes.h"
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "0123456789abcdef0123456789abcdef"
#define OTHER "0123456789abcdef0123456789abcdeF"

/* A value that the test searches for in the recorded bytes of all messages. */
#define TREASURE "the weights of the model"

static char *
share_treasure (weft_rendezvous *r, GError **error)
{
  g_autoptr (GBytes) mine = g_bytes_new_static (TREASURE, strlen (TREASURE));

  if (cast_process (r) == 0 && !weft_rendezvous_set (r, "hoard", mine, error))
    return NULL;
  g_autoptr (GBytes) value = weft_rendezvous_get (r, "hoard", error);
  if (!value || !cast_barrier (r, "the end", error))
    return NULL;
  return g_strndup (g_bytes_get_data (value, NULL), g_bytes_get_size (value));
}

/* Returns n processes of a job that all know its secret. */
static struct cast
cast_with_secret (uint32_t n, double seconds)
{
  struct cast c = cast_of (n, seconds, share_treasure);

  for (uint32_t i = 0; i < n; i++)
    c.part[i].place.secret = SECRET;
  return c;
}

static void
assert_all_share (struct cast *c)
{
  for (uint32_t i = 0; i < c->n; i++)
    cast_assert_said (c, i, TREASURE);
}

static void
processes_with_the_same_secret_meet (void **state)
{
  struct cast c = cast_with_secret (5, 20);

  (void) state;
  cast_run (&c);
  assert_all_share (&c);
  cast_clear (&c);
}

static char *
share_much (weft_rendezvous *r, GError **error)
{
  gsize n = WEFT_FRAME_MOST_VALUE / 2 - 100;
  g_autofree uint8_t *block = g_malloc (n);

  for (gsize i = 0; i < n; i++)
    block[i] = (uint8_t) (i * (3 + cast_process (r)) >> 3);
  g_autoptr (GBytes) mine = g_bytes_new (block, n);
  g_autoptr (GPtrArray) all = weft_rendezvous_all_gather (r, "much", mine, 60, error);
  if (!all)
    return NULL;
  const uint8_t *other = g_bytes_get_data (all->pdata[1 - cast_process (r)], NULL);
  for (gsize i = 0; i < n; i++)
    if (other[i] != (uint8_t) (i * (4 - cast_process (r)) >> 3))
      return g_strdup ("another value");
  return g_strdup ("whole");
}

static void
encrypted_values_of_megabytes_arrive_whole (void **state)
{
  struct cast c = cast_with_secret (2, 60);

  (void) state;
  c.part[0].play = c.part[1].play = share_much;
  cast_run (&c);
  cast_assert_said (&c, 0, "whole");
  cast_assert_said (&c, 1, "whole");
  cast_clear (&c);
}

/* -------------------------------------------------------------------------- impostors */

static void
assert_refused (struct raw_client *raw, const char *part)
{
  struct weft_frame f;

  assert_true (raw_next (raw, &f));
  g_autofree char *why = weft_wire_text (f.value, f.value_bytes);
  assert_int_equal (f.kind, WEFT_FRAME_REFUSED);
  if (!strstr (why, part))
    fail_msg ("%s, wanted: %s", why, part);
  assert_false (raw_next (raw, &f));
}

/* Acts as a client that knows the name of the job but not its secret, and tries to join as rank
 * 1. The store refuses it. */
static void
try_to_be_rank_1 (uint16_t port)
{
  static const enum weft_frame_kind kinds[] = { WEFT_FRAME_GET, WEFT_FRAME_HELLO, WEFT_FRAME_BYE };
  const uint8_t guess[WEFT_SEAL_NONCE] = { 0 };
  struct weft_frame f;

  struct raw_client raw = raw_connect (port, "127.0.0.1");
  assert_true (raw_hello (&raw, 1, 2, &f));
  assert_int_equal (f.kind, WEFT_FRAME_CHALLENGE);
  f = (struct weft_frame){ .kind = WEFT_FRAME_PROOF, .value = guess, .value_bytes = sizeof guess };
  assert_true (raw_send (&raw, &f));
  assert_refused (&raw, "another secret than that of rank 0");
  raw_close (&raw);
  /* The client sends a request in place of the proof that it knows the secret. */
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    raw = raw_connect (port, "127.0.0.1");
    assert_true (raw_hello (&raw, 1, 2, &f));
    f = (struct weft_frame){ .kind = kinds[i], .key = "hoard", .key_bytes = 5 };
    assert_true (raw_send (&raw, &f));
    assert_false (raw_next (&raw, &f));
    raw_close (&raw);
  }
}

static void
an_impostor_takes_no_place_and_reads_nothing (void **state)
{
  struct cast c = cast_with_secret (2, 20);

  (void) state;
  cast_start (&c, 0);
  try_to_be_rank_1 (c.part[0].place.port);
  cast_start (&c, 1);
  cast_finish (&c);
  assert_all_share (&c);
  cast_clear (&c);
}

/* `runs`: number of processes that have joined the job. `may_end`: the test sets it when these
 * processes may continue. */
static gint runs, may_end;

static char *
wait_for_the_test (weft_rendezvous *r, GError **error)
{
  g_atomic_int_inc (&runs);
  while (!g_atomic_int_get (&may_end))
    g_usleep (1000);
  return share_treasure (r, error);
}

static void
an_impostor_of_a_process_that_has_joined_changes_nothing (void **state)
{
  struct cast c = cast_with_secret (2, 20), again;

  (void) state;
  g_atomic_int_set (&runs, 0);
  g_atomic_int_set (&may_end, 0);
  c.part[0].play = c.part[1].play = wait_for_the_test;
  again = c;
  cast_start (&c, 0);
  cast_start (&c, 1);
  while (g_atomic_int_get (&runs) < 2)
    g_usleep (1000);
  try_to_be_rank_1 (c.part[0].place.port);
  cast_start (&again, 1); /* a second process with rank 1 that knows the secret */
  cast_finish (&again);
  cast_assert_failed (&again, 1, "rank 1: found a second process with this rank, the first is on");
  g_atomic_int_set (&may_end, 1);
  cast_finish (&c);
  assert_all_share (&c);
  cast_clear (&c);
  cast_clear (&again);
}

static void
a_process_with_another_secret_is_told (void **state)
{
  struct cast c = cast_with_secret (2, 1.5);

  (void) state;
  c.part[1].place.secret = OTHER;
  cast_run (&c);
  cast_assert_failed (&c, 1, "found another secret than that of rank 0");
  cast_assert_failed (&c, 0, "missing: rank 1");
  cast_clear (&c);
}

static void
a_process_without_the_secret_is_told (void **state)
{
  struct cast c = cast_with_secret (2, 1.5);

  (void) state;
  c.part[1].place.secret = NULL;
  cast_run (&c);
  cast_assert_failed (&c, 1, "rank 0 has a secret, and this process has none: set WEFT_SECRET");
  cast_assert_failed (&c, 0, "missing: rank 1");
  cast_clear (&c);
}

static void
a_process_with_a_secret_trusts_no_rendezvous_without_one (void **state)
{
  struct cast c = cast_with_secret (2, 1.5);

  (void) state;
  c.part[0].place.secret = NULL;
  cast_run (&c);
  cast_assert_failed (&c, 1, "found a rendezvous without a secret");
  cast_clear (&c);
}

/* Acts as a store that asks for a proof and accepts any proof. */
static gboolean
accept_any (GSocketService *service, GSocketConnection *c, GObject *source, gpointer data)
{
  const uint8_t bytes[WEFT_SEAL_NONCE] = { 1 };
  struct weft_frame f = { .kind = WEFT_FRAME_CHALLENGE,
                          .value = bytes,
                          .value_bytes = sizeof bytes };
  g_autoptr (GByteArray) out = g_byte_array_new ();
  char block[4096];

  (void) service, (void) source, (void) data;
  weft_frame_put (out, &f);
  f.kind = WEFT_FRAME_ADMITTED;
  weft_frame_put (out, &f);
  g_socket_send (g_socket_connection_get_socket (c), (char *) out->data, out->len, NULL, NULL);
  while (g_socket_receive (g_socket_connection_get_socket (c), block, sizeof block, NULL, NULL) > 0)
    ;
  return FALSE;
}

static void
an_impostor_of_rank_0_is_found_out (void **state)
{
  g_autoptr (GSocketService) service = g_threaded_socket_service_new (4);
  struct cast c = cast_with_secret (2, 5);

  (void) state;
  assert_true (g_socket_listener_add_inet_port (G_SOCKET_LISTENER (service), c.part[1].place.port,
                                                NULL, NULL));
  g_signal_connect (service, "run", G_CALLBACK (accept_any), NULL);
  cast_start (&c, 1);
  for (int i = 0; i < 1000 && !c.part[1].error; i++) {
    g_main_context_iteration (NULL, FALSE);
    g_usleep (5000);
  }
  cast_finish (&c);
  cast_assert_failed (&c, 1, "found a service that does not know the secret");
  g_socket_listener_close (G_SOCKET_LISTENER (service));
  cast_clear (&c);
}

/* --------------------------------------------------------------------------- listeners */

/* A program between a process and the store, which forwards and records all bytes, and can change
 * one of them. */
struct wire_tap {
  GSocket *listening;
  uint16_t port, store_port;
  /* recorded bytes: those sent to the store, and those received from the store */
  GByteArray *up, *down;
  /* position of the byte from the store that is changed, counted from 1; 0: no byte is changed */
  guint change_after;
  GThread *thread;
};

/* Forwards and records the bytes that have arrived. Returns FALSE if the connection is closed. */
static gboolean
pass_on (GSocket *from, GSocket *to, GByteArray *record, guint change_after)
{
  uint8_t block[4096];
  gssize n = g_socket_receive (from, (char *) block, sizeof block, NULL, NULL);

  if (n <= 0)
    return FALSE;
  if (change_after && record->len <= change_after && record->len + (guint) n > change_after)
    block[change_after - record->len] ^= 1;
  g_byte_array_append (record, block, (guint) n);
  return g_socket_send (to, (char *) block, (gsize) n, NULL, NULL) == n;
}

static gpointer
tap_main (gpointer data)
{
  struct wire_tap *tap = data;
  g_autoptr (GSocket) client = g_socket_accept (tap->listening, NULL, NULL);
  g_autoptr (GSocketConnection) connection = cast_connect (tap->store_port, "127.0.0.1");
  GSocket *store = g_socket_connection_get_socket (connection);
  GPollFD fds[] = { { g_socket_get_fd (client), G_IO_IN, 0 },
                    { g_socket_get_fd (store), G_IO_IN, 0 } };
  gboolean open = TRUE;

  while (open) {
    g_poll (fds, 2, -1);
    if (fds[0].revents)
      open = pass_on (client, store, tap->up, 0);
    if (fds[1].revents)
      open = pass_on (store, client, tap->down, tap->change_after) && open;
  }
  g_socket_close (client, NULL);
  return NULL;
}

static void
tap_start (struct wire_tap *tap, struct cast *c)
{
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new_from_string ("127.0.0.1", 0);

  tap->listening =
      g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  assert_true (g_socket_bind (tap->listening, address, TRUE, NULL));
  assert_true (g_socket_listen (tap->listening, NULL));
  g_autoptr (GSocketAddress) at = g_socket_get_local_address (tap->listening, NULL);
  tap->store_port = c->part[1].place.port;
  c->part[1].place.port = g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (at));
  tap->up = g_byte_array_new ();
  tap->down = g_byte_array_new ();
  tap->thread = g_thread_new ("tap", tap_main, tap);
}

static void
tap_finish (struct wire_tap *tap)
{
  g_thread_join (tap->thread);
  g_object_unref (tap->listening);
}

static void
tap_clear (struct wire_tap *tap)
{
  g_byte_array_unref (tap->up);
  g_byte_array_unref (tap->down);
}

static gboolean
contains (const GByteArray *bytes, const char *text)
{
  return memmem (bytes->data, bytes->len, text, strlen (text)) != NULL;
}

/* A tap records the bytes between a process and the store. If the job has no secret, the recorded
 * bytes must contain the value (so the search for it works). If the job has a secret, they must not
 * contain it. */
static void
a_listener_on_the_wire_reads_nothing (void **state)
{
  (void) state;
  for (int secret = 0; secret < 2; secret++) {
    struct cast c = secret ? cast_with_secret (2, 20) : cast_of (2, 20, share_treasure);
    struct wire_tap tap = { 0 };
    tap_start (&tap, &c);
    cast_run (&c);
    assert_all_share (&c);
    tap_finish (&tap);
    assert_int_equal (contains (tap.down, TREASURE), !secret);
    assert_int_equal (contains (tap.up, "hoard"), !secret);
    assert_false (contains (tap.up, SECRET) || contains (tap.down, SECRET));
    tap_clear (&tap);
    cast_clear (&c);
  }
}

/* Sends the recorded bytes of a process to the store of another run with the same secret. The other
 * run has another nonce, so its store must refuse the recorded proof. */
static void
what_a_listener_has_recorded_admits_nobody (void **state)
{
  struct cast c = cast_with_secret (2, 20);
  struct wire_tap tap = { 0 };
  struct weft_frame f;

  (void) state;
  tap_start (&tap, &c);
  cast_run (&c);
  assert_all_share (&c);
  tap_finish (&tap);
  cast_clear (&c);

  struct cast next = cast_with_secret (2, 20);
  cast_start (&next, 0);
  struct raw_client raw = raw_connect (next.part[0].place.port, "127.0.0.1");
  g_socket_send (g_socket_connection_get_socket (raw.connection), (char *) tap.up->data,
                 tap.up->len, NULL, NULL);
  assert_true (raw_next (&raw, &f));
  assert_int_equal (f.kind, WEFT_FRAME_CHALLENGE);
  assert_refused (&raw, "another secret");
  raw_close (&raw);
  cast_start (&next, 1);
  cast_finish (&next);
  assert_all_share (&next);
  cast_clear (&next);
  tap_clear (&tap);
}

static void
a_byte_that_is_changed_on_the_wire_ends_the_job (void **state)
{
  /* Which byte of those that the store sends is changed: byte `after`, which lies in the store's
   * challenge, in its proof, or in its first record, the welcome. */
  static const struct {
    guint after;
    const char *why;
  } changes[] = { { 20, "another secret" },
                  { 60, "does not know the secret" },
                  { 95, "rank 0, which runs the rendezvous at 127.0.0.1" } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (changes); i++) {
    struct cast c = cast_with_secret (2, 2);
    struct wire_tap tap = { .change_after = changes[i].after };
    tap_start (&tap, &c);
    cast_run (&c);
    tap_finish (&tap);
    cast_assert_failed (&c, 1, changes[i].why);
    assert_non_null (c.part[0].error);
    tap_clear (&tap);
    cast_clear (&c);
  }
}

/* ----------------------------------------------------------------------------- records */

/* The cipher must give the example of RFC 8439, section 2.4.2. */
static void
the_cipher_is_chacha20 (void **state)
{
  static const char text[] = "Ladies and Gentlemen of the class of '99: If I could offer you only "
                             "one tip for the future, sunscreen would be it.";
  static const uint8_t first[] = { 0x6e, 0x2e, 0x35, 0x9a, 0x25, 0x68, 0xf9, 0x80 },
                       last[] = { 0x8e, 0xed, 0xf2, 0x78, 0x5e, 0x42, 0x87, 0x4d },
                       nonce[12] = { 0, 0, 0, 0, 0, 0, 0, 0x4a };
  uint8_t key[32], data[sizeof text];

  (void) state;
  for (unsigned i = 0; i < sizeof key; i++)
    key[i] = (uint8_t) i;
  memcpy (data, text, sizeof text);
  weft_seal_chacha20 (key, nonce, 1, data, strlen (text));
  assert_memory_equal (data, first, sizeof first);
  assert_memory_equal (data + strlen (text) - sizeof last, last, sizeof last);
  weft_seal_chacha20 (key, nonce, 1, data, strlen (text));
  assert_string_equal ((char *) data, text);
}

struct sides {
  GByteArray *transcript, *record, *data;
  weft_seal *client, *store;
};

static struct sides
sides_of (const char *client, const char *store)
{
  struct sides s = { g_byte_array_new (), g_byte_array_new (), g_byte_array_new (), NULL, NULL };

  g_byte_array_append (s.transcript, (const uint8_t *) "nonces", 6);
  s.client = weft_seal_new (client, s.transcript, WEFT_SEAL_CLIENT);
  s.store = weft_seal_new (store, s.transcript, WEFT_SEAL_STORE);
  weft_seal_put (s.client, (const uint8_t *) "first", 5, s.record);
  return s;
}

static void
sides_clear (struct sides *s)
{
  g_byte_array_unref (s->transcript);
  g_byte_array_unref (s->record);
  g_byte_array_unref (s->data);
  weft_seal_free (s->client);
  weft_seal_free (s->store);
}

static void
a_record_that_was_changed_is_not_opened (void **state)
{
  struct sides s = sides_of (SECRET, SECRET);

  (void) state;
  assert_int_equal (s.record->len, 5 + WEFT_SEAL_OVERHEAD);
  for (guint i = 0; i < 8 * s.record->len; i++) {
    s.record->data[i / 8] ^= (uint8_t) (1 << i % 8);
    assert_true (weft_seal_open (s.store, s.record->data, s.record->len, s.data) <= 0);
    s.record->data[i / 8] ^= (uint8_t) (1 << i % 8);
  }
  for (guint n = 0; n < s.record->len; n++)
    assert_int_equal (weft_seal_open (s.store, s.record->data, n, s.data), 0);
  assert_int_equal (s.data->len, 0);
  assert_int_equal (weft_seal_open (s.store, s.record->data, s.record->len, s.data), s.record->len);
  assert_memory_equal (s.data->data, "first", 5);
  sides_clear (&s);
}

static void
a_record_is_opened_once_in_its_order_and_by_the_other_side (void **state)
{
  struct sides s = sides_of (SECRET, SECRET), other = sides_of (SECRET, OTHER);
  guint n = s.record->len;

  (void) state;
  weft_seal_put (s.client, (const uint8_t *) "second", 6, s.record);
  assert_int_equal (weft_seal_open (s.store, s.record->data + n, s.record->len - n, s.data), -1);
  assert_int_equal (weft_seal_open (s.client, s.record->data, s.record->len, s.data), -1);
  assert_int_equal (weft_seal_open (s.store, s.record->data, s.record->len, s.data), n);
  assert_int_equal (weft_seal_open (s.store, s.record->data, s.record->len, s.data), -1);
  assert_int_equal (weft_seal_open (s.store, s.record->data + n, s.record->len - n, s.data), n + 1);
  assert_int_equal (weft_seal_open (other.store, other.record->data, other.record->len, s.data),
                    -1);
  assert_int_equal (s.data->len, 11);
  sides_clear (&s);
  sides_clear (&other);
}

/* --------------------------------------------------------------------- where it is kept */

static char *
path_of (void **state, const char *name)
{
  return g_build_filename (*state, name, NULL);
}

static void
assert_file_refused (const char *path, const char *part)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *secret = weft_secret_read (path, FALSE, &error);

  assert_null (secret);
  if (!strstr (error->message, part))
    fail_msg ("%s, wanted: %s", error->message, part);
}

static gpointer
create (gpointer path)
{
  return weft_secret_read (path, TRUE, NULL);
}

static void
the_file_is_created_once_and_for_its_owner_only (void **state)
{
  g_autofree char *path = path_of (state, "new/folder/secret"), *folder = g_path_get_dirname (path);
  GThread *thread[6];
  char *secret[6];
  struct stat about;

  assert_file_refused (path, "copy the file here, or set WEFT_SECRET");
  for (unsigned i = 0; i < G_N_ELEMENTS (thread); i++)
    thread[i] = g_thread_new ("create", create, path);
  for (unsigned i = 0; i < G_N_ELEMENTS (thread); i++)
    secret[i] = g_thread_join (thread[i]);
  assert_int_equal (strlen (secret[0]), 64);
  for (unsigned i = 1; i < G_N_ELEMENTS (thread); i++)
    assert_string_equal (secret[i], secret[0]);
  assert_int_equal (stat (path, &about), 0);
  assert_int_equal (about.st_mode & 07777, 0600);
  assert_int_equal (stat (folder, &about), 0);
  assert_int_equal (about.st_mode & 077, 0);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  /* the folder contains the secret and no other file */
  assert_string_equal (g_dir_read_name (dir), "secret");
  assert_null (g_dir_read_name (dir));
  for (unsigned i = 0; i < G_N_ELEMENTS (thread); i++)
    g_free (secret[i]);
}

static void
a_file_that_others_can_read_or_that_is_too_short_is_refused (void **state)
{
  g_autofree char *path = path_of (state, "given"), *fifo = path_of (state, "fifo");
  g_autoptr (GError) error = NULL;

  assert_true (g_file_set_contents (path, SECRET "\r\nmore", -1, NULL));
  assert_int_equal (chmod (path, 0640), 0);
  assert_file_refused (path, "found mode 0640, wanted a secret that only its owner can read");
  assert_int_equal (chmod (path, 0600), 0);
  g_autofree char *secret = weft_secret_read (path, FALSE, &error);
  assert_string_equal (secret, SECRET);
  assert_true (g_file_set_contents (path, "0123456789abcde\n", -1, NULL));
  assert_int_equal (chmod (path, 0600), 0);
  assert_file_refused (path, "found a secret of 15 characters, wanted at least 16");
  assert_int_equal (mkfifo (fifo, 0600), 0);
  assert_file_refused (fifo, "wanted a file");
  assert_file_refused (*state, "wanted a file");
}

/* Ranks 1 and 2 start first and wait, because the file does not exist before rank 0 has created
 * it. */
static void
rank_0_makes_the_file_that_the_others_read (void **state)
{
  g_autofree char *path = path_of (state, "made/by/rank_0");
  struct cast c = cast_of (3, 20, share_treasure);

  for (uint32_t i = 0; i < c.n; i++)
    c.part[i].place.secret_file = path;
  cast_start (&c, 1);
  cast_start (&c, 2);
  g_usleep (20000);
  cast_start (&c, 0);
  cast_finish (&c);
  assert_all_share (&c);
  assert_true (g_file_test (path, G_FILE_TEST_EXISTS));
  cast_clear (&c);
}

static void
a_process_without_the_file_is_told (void **state)
{
  g_autofree char *path = path_of (state, "here"), *elsewhere = path_of (state, "elsewhere");
  struct cast c = cast_of (2, 1.5, share_treasure);

  c.part[0].place.secret_file = path;
  c.part[1].place.secret_file = elsewhere;
  cast_run (&c);
  cast_assert_failed (&c, 1, "elsewhere: found no secret of the rendezvous on this machine");
  cast_clear (&c);
}

/* 240.0.0.1 is a reserved address (RFC 1112) that no machine has. It stands for an address of a
 * network. */
static void
an_address_of_the_network_wants_a_secret (void **state)
{
  struct cast c = cast_of (2, 1, share_treasure);

  (void) state;
  c.part[0].place.host = c.part[1].place.host = "240.0.0.1";
  cast_run (&c);
  cast_assert_failed (&c, 0, "240.0.0.1: found no secret of the rendezvous");
  cast_assert_failed (&c, 1, "set WEFT_SECRET to the same secret in all processes");
  cast_clear (&c);
}

static void
a_host_that_is_not_this_machine_is_listened_for_everywhere (void **state)
{
  struct weft_store_options options = {
    .token = "", .secret = SECRET, .host = "240.0.0.1", .n = 1, .ranks_each = 1, .seconds = 1
  };
  g_autoptr (GError) error = NULL;
  weft_store *store = weft_store_open (0, &options, &error);

  (void) state;
  assert_non_null (store);
  assert_true (weft_store_is_everywhere (store));
  weft_store_close (store, 0);
  options.secret = NULL;
  assert_null (weft_store_open (0, &options, &error));
  assert_non_null (strstr (error->message, "240.0.0.1: found no address of this machine"));
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (processes_with_the_same_secret_meet),
  cmocka_unit_test (encrypted_values_of_megabytes_arrive_whole),
  cmocka_unit_test (an_impostor_takes_no_place_and_reads_nothing),
  cmocka_unit_test (an_impostor_of_a_process_that_has_joined_changes_nothing),
  cmocka_unit_test (a_process_with_another_secret_is_told),
  cmocka_unit_test (a_process_without_the_secret_is_told),
  cmocka_unit_test (a_process_with_a_secret_trusts_no_rendezvous_without_one),
  cmocka_unit_test (an_impostor_of_rank_0_is_found_out),
  cmocka_unit_test (a_listener_on_the_wire_reads_nothing),
  cmocka_unit_test (what_a_listener_has_recorded_admits_nobody),
  cmocka_unit_test (a_byte_that_is_changed_on_the_wire_ends_the_job),
  cmocka_unit_test (the_cipher_is_chacha20),
  cmocka_unit_test (a_record_that_was_changed_is_not_opened),
  cmocka_unit_test (a_record_is_opened_once_in_its_order_and_by_the_other_side),
  IN_FOLDER (the_file_is_created_once_and_for_its_owner_only),
  IN_FOLDER (a_file_that_others_can_read_or_that_is_too_short_is_refused),
  IN_FOLDER (rank_0_makes_the_file_that_the_others_read),
  IN_FOLDER (a_process_without_the_file_is_told),
  cmocka_unit_test (an_address_of_the_network_wants_a_secret),
  cmocka_unit_test (a_host_that_is_not_this_machine_is_listened_for_everywhere),
};

WEFT_TESTS (tests, .seconds = 6)
