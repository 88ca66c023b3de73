/* Tests of reading and writing safetensors files. The reader must read every valid file and refuse
 * malformed files. The writer must write the bytes of the format. While the writer writes a file,
 * and after the writer fails, the path of the file must hold the complete old file, or no file if
 * there was none. */
#include "train/safetensors.h"
#include "core/base/error.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* A temporary folder for the files of one test. */
struct place {
  char *folder;
};

static int
make_place (void **state)
{
  struct place *place = g_new0 (struct place, 1);

  place->folder = g_dir_make_tmp ("weft-safetensors-XXXXXX", NULL);
  *state = place;
  return place->folder ? 0 : -1;
}

static unsigned
files_in (const struct place *place, gboolean remove)
{
  g_autoptr (GDir) dir = g_dir_open (place->folder, 0, NULL);
  const char *name;
  unsigned n = 0;

  for (; (name = g_dir_read_name (dir)); n++) {
    g_autofree char *path = g_build_filename (place->folder, name, NULL);
    if (remove)
      g_unlink (path);
  }
  return n;
}

static int
remove_place (void **state)
{
  struct place *place = *state;

  files_in (place, TRUE);
  g_rmdir (place->folder);
  g_free (place->folder);
  g_free (place);
  return 0;
}

static char *
path_in (const struct place *place, const char *name)
{
  return g_build_filename (place->folder, name, NULL);
}

static void
store (const char *path, const void *bytes, gsize n)
{
  assert_true (g_file_set_contents (path, bytes, n, NULL));
}

/* Writes a safetensors file with this header and n bytes of data: 0, 1, 2, ... */
static void
store_file (const char *path, const char *header, gsize n)
{
  uint64_t length = strlen (header);
  g_autoptr (GByteArray) bytes = g_byte_array_new ();

  g_byte_array_append (bytes, (const uint8_t *) &length, sizeof length);
  g_byte_array_append (bytes, (const uint8_t *) header, length);
  for (gsize i = 0; i < n; i++)
    g_byte_array_append (bytes, &(uint8_t){ i }, 1);
  store (path, bytes->data, bytes->len);
}

static weft_safetensors *
open_good (const char *path)
{
  g_autoptr (GError) error = NULL;
  weft_safetensors *file = weft_safetensors_open (path, &error);

  if (!file)
    fail_msg ("%s", error->message);
  return file;
}

static void
assert_refused (const char *path, const char *message)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, &error);

  if (file)
    fail_msg ("accepted, wanted: %s", message);
  if (!strstr (error->message, message))
    fail_msg ("found:  %s\nwanted: %s", error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

/* ------------------------------------------------------------------------ reading */

#define U8(begin, end, shape)                                                                      \
  "{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void
entries_may_stand_in_any_order_and_be_empty_or_scalars (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");

  store_file (
      path,
      "{\"b\":" U8 (3, 5, "[2,1]") ",\"none\":" U8 (3, 3, "[7,0]") ",\"a\":" U8 (
          0, 2, "[1,2]") ",\"__metadata__\":{\"format\":\"pt\"},\"one\":" U8 (2, 3, "[]") "}  ",
      5);
  g_autoptr (weft_safetensors) file = open_good (path);
  assert_int_equal (weft_safetensors_count (file), 4);
  assert_string_equal (weft_safetensors_at (file, 0)->name, "a");
  assert_string_equal (weft_safetensors_at (file, 1)->name, "one");
  assert_string_equal (weft_safetensors_at (file, 2)->name, "none");
  const struct weft_tensor *b = weft_safetensors_find (file, "b");
  assert_ptr_equal (b, weft_safetensors_at (file, 3));
  assert_int_equal (b->n_dim, 2);
  assert_int_equal (b->dim[0], 2);
  assert_memory_equal (weft_safetensors_data (file, b), "\3\4", 2);
  assert_int_equal (weft_tensor_elements (weft_safetensors_at (file, 1)), 1);
  assert_int_equal (weft_tensor_elements (weft_safetensors_at (file, 2)), 0);
  assert_null (weft_safetensors_find (file, "c"));
  assert_string_equal (weft_safetensors_metadata (file, "format"), "pt");
  assert_null (weft_safetensors_metadata (file, "author"));
}

static void
a_file_without_tensors_is_a_file (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");

  store_file (path, "{}", 0);
  g_autoptr (weft_safetensors) file = open_good (path);
  assert_int_equal (weft_safetensors_count (file), 0);
}

static const struct {
  const char *header;
  unsigned bytes;
  const char *message;
} bad[] = {
  { "", 0, "found a header that does not begin with '{': not safetensors" },
  { " {}", 0, "found a header that does not begin with '{'" },
  { "[]", 0, "found a header that does not begin with '{'" },
  { "{\"a\":}", 0, "header:1:" },
  { "{}{}", 0, "header:1:3: found '{', wanted nothing after the last bracket" },
  { "{\"a\":1}", 0, "tensor a: found a number, wanted an object" },
  { "{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1,
    "tensor a: dtype: found nothing, wanted the name of a type" },
  { "{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
    "tensor a: dtype: found \"F4\", wanted one of BOOL, U8, I8," },
  { "{\"a\":" U8 (0, 1, "1") "}", 1, "tensor a: shape: found a number, wanted an array" },
  { "{\"a\":" U8 (0, 1, "[1.0]") "}", 1, "shape: found a number, wanted a whole number" },
  { "{\"a\":" U8 (0, 1, "[-1,-1]") "}", 1, "shape: found -1, wanted 0 or more" },
  { "{\"a\":" U8 (0, 1, "[1,1,1,1,1,1,1,1,1]") "}", 1, "shape: found 9 numbers, wanted at most 8" },
  { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1,
    "data_offsets: found 1 numbers, wanted 2" },
  { "{\"a\":" U8 (2, 1, "[1]") "}", 2,
    "tensor a: data_offsets: found an end at 1 before the begin at 2" },
  { "{\"a\":" U8 (0, 3, "[2]") "}", 3,
    "data_offsets: found 3 bytes, wanted 2 bytes for the shape" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
    "data_offsets: found 2 bytes, wanted 8 bytes for the shape" },
  { "{\"a\":" U8 (0, 0, "[144115188075855872,128]") "}", 0, "shape: found more than 2^64 bytes" },
  { "{\"a\":" U8 (0, 1, "[1]") ",\"b\":" U8 (2, 3, "[1]") "}", 3,
    "tensor b: found a hole: data_offsets begin at 2, wanted 1" },
  { "{\"a\":" U8 (1, 2, "[1]") "}", 2,
    "tensor a: found a hole: data_offsets begin at 1, wanted 0" },
  { "{\"b\":" U8 (1, 3, "[2]") ",\"a\":" U8 (0, 2, "[2]") "}", 3,
    "tensor b: found an overlap: data_offsets begin at 1, wanted 2" },
  { "{\"a\":" U8 (0, 1, "[1]") "}", 2,
    "found 2 bytes of data, wanted 1 bytes for the tensors of the header" },
  { "{\"a\":" U8 (0, 4, "[4]") "}", 3, "found 3 bytes of data, wanted 4 bytes for the tensors" },
  { "{\"a\":" U8 (0, 1, "[1]") ",\"\\u0061\":" U8 (1, 2, "[1]") "}", 2,
    "found the key \"a\" twice, wanted it once" },
  { "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a: found a number, wanted text" },
  { "{\"__metadata__\":[]}", 0, "__metadata__: found an array, wanted an object" },
};

static void
bad_files_are_refused_with_what_was_found_and_wanted (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");

  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    store_file (path, bad[i].header, bad[i].bytes);
    assert_refused (path, bad[i].message);
    assert_refused (path, path);
  }
}

static void
a_header_that_cannot_be_there_is_refused (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");
  uint64_t sizes[] = { 3, 100000001, UINT64_MAX, UINT64_MAX - 7 };
  char bytes[10] = "\0\0\0\0\0\0\0\0{}";

  store (path, bytes, 7);
  assert_refused (path, "found 7 bytes, wanted the 8 bytes of a header size");
  for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++) {
    memcpy (bytes, &sizes[i], 8);
    store (path, bytes, sizeof bytes);
    assert_refused (path, "bytes, wanted at most 2");
  }
  g_unlink (path);
  assert_refused (path, "a.safetensors: cannot be opened: No such file or directory");
  assert_refused (((struct place *) *state)->folder, "found a directory, wanted a file");
}

/* Every prefix of a safetensors file must be refused. The file with one byte replaced must be read
 * or refused, without a crash. */
static void
damaged_files_never_crash (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");
  static const char marks[] = "\"[{}]:,-9e\\";
  g_autofree char *bytes = NULL;
  gsize n;

  store_file (path, "{\"a\":" U8 (0, 2, "[2,1]") ",\"b\":" U8 (2, 3, "[]") "}", 3);
  assert_true (g_file_get_contents (path, &bytes, &n, NULL));
  for (gsize i = 0; i < n; i++) {
    char kept = bytes[i];
    store (path, bytes, i);
    assert_null (weft_safetensors_open (path, NULL));
    bytes[i] = marks[i % (sizeof marks - 1)];
    store (path, bytes, n);
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_safetensors) file = weft_safetensors_open (path, &error);
    assert_true (file || error);
    bytes[i] = kept;
  }
}

/* ------------------------------------------------------------------------- floats */

static void
floats_of_four_types_are_exact (void **state)
{
  static const uint16_t f16[] = { 0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x8000 };
  static const float f16_wanted[] = {
    1, -2, 0x1p-24f, 0x3ffp-24f, 0x1p-14f, 65504, INFINITY, -0.0f
  };
  static const uint16_t bf16[] = { 0x3f80, 0xc049, 0x0001, 0xff80 };
  static const float bf16_wanted[] = { 1, -3.140625f, 0x1p-133f, -INFINITY };
  static const float f32[] = { 0.1f, -0x1p-149f, 3e38f };
  static const double f64[] = { 0.1, 1e300 };
  static const float f64_wanted[] = { 0.1f, INFINITY };
  static const struct {
    enum weft_tensor_type type;
    const void *data;
    uint32_t n;
    const float *wanted;
  } rows[] = { { WEFT_TENSOR_F16, f16, 8, f16_wanted },
               { WEFT_TENSOR_BF16, bf16, 4, bf16_wanted },
               { WEFT_TENSOR_F32, f32, 3, f32 },
               { WEFT_TENSOR_F64, f64, 2, f64_wanted } };
  g_autofree char *path = path_in (*state, "a.safetensors");
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);

  /* The first tensor has one byte, so that the data of all later tensors begin at an unaligned
   * address. */
  weft_safetensors_declare (w, "byte", WEFT_TENSOR_U8, 0, NULL);
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
    weft_safetensors_declare (w, weft_tensor_type_words[rows[i].type], rows[i].type, 1,
                              (const uint64_t[]){ rows[i].n });
  assert_true (weft_safetensors_put (w, "x", 1, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
    assert_true (weft_safetensors_put (w, rows[i].data,
                                       rows[i].n * weft_tensor_type_bytes[rows[i].type], NULL));
  assert_true (weft_safetensors_close (w, NULL));
  g_autoptr (weft_safetensors) file = open_good (path);
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    const struct weft_tensor *t =
        weft_safetensors_find (file, weft_tensor_type_words[rows[i].type]);
    float found[8];
    assert_true (weft_safetensors_floats (file, t, 0, rows[i].n, found, NULL));
    assert_memory_equal (found, rows[i].wanted, rows[i].n * sizeof *found);
    assert_true (weft_safetensors_floats (file, t, 1, rows[i].n - 1, found, NULL));
    assert_memory_equal (found, rows[i].wanted + 1, (rows[i].n - 1) * sizeof *found);
  }
}

static void
a_tensor_that_is_not_floats_is_refused_by_name (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");
  g_autoptr (GError) error = NULL;
  float f;

  store_file (path, "{\"mask\":" U8 (0, 1, "[1]") "}", 1);
  g_autoptr (weft_safetensors) file = open_good (path);
  assert_false (weft_safetensors_floats (file, weft_safetensors_at (file, 0), 0, 1, &f, &error));
  assert_non_null (
      strstr (error->message, "tensor mask: found type U8, wanted F32, F16, BF16 or F64"));
}

/* -------------------------------------------------------------------------- index */

static void
an_index_shows_its_shards_as_one_list (void **state)
{
  static const char index[] =
      "{\"metadata\":{\"total_size\":5},\"weight_map\":{\"b\":\"2.safetensors\","
      "\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}";
  g_autofree char *one = path_in (*state, "1.safetensors");
  g_autofree char *two = path_in (*state, "2.safetensors");
  g_autofree char *path = path_in (*state, "model.safetensors.index.json");

  store_file (one, "{\"a\":" U8 (0, 2, "[2]") ",\"b\":" U8 (2, 3, "[1]") "}", 3);
  store_file (
      two, "{\"c\":" U8 (0, 1, "[1]") ",\"b\":" U8 (1, 2, "[1]") ",\"__metadata__\":{\"k\":\"v\"}}",
      2);
  store (path, index, strlen (index));
  g_autoptr (weft_safetensors) file = open_good (path);
  assert_int_equal (weft_safetensors_count (file), 3);
  assert_string_equal (weft_safetensors_at (file, 0)->name, "b");
  const struct weft_tensor *a = weft_safetensors_find (file, "a");
  const struct weft_tensor *b = weft_safetensors_find (file, "b");
  assert_memory_equal (weft_safetensors_data (file, a), "\0\1", 2);
  /* tensor b is in the second shard */
  assert_memory_equal (weft_safetensors_data (file, b), "\1", 1);
  assert_string_equal (weft_safetensors_metadata (file, "k"), "v");
  g_autoptr (weft_safetensors) folder = open_good (((struct place *) *state)->folder);
  assert_int_equal (weft_safetensors_count (folder), 3);
}

static void
an_index_that_leads_nowhere_is_refused (void **state)
{
  static const struct {
    const char *index, *message;
  } rows[] = {
    { "", "i.json: weight_map: found nothing" },
    { "{", "i.json:1:2: found the end of the file, wanted a closing bracket" },
    { "{}", "i.json: weight_map: found nothing, wanted an object that maps tensors to files" },
    { "{\"weight_map\":[]}",
      "weight_map: found an array, wanted an object that maps tensors to files" },
    { "{\"weight_map\":{\"a\":1}}", "weight_map: a: found a number, wanted the name of a file" },
    { "{\"weight_map\":{\"a\":\"../1.safetensors\"}}",
      "weight_map: a: found \"../1.safetensors\", wanted the name of a file beside it" },
    { "{\"weight_map\":{\"a\":\"..\"}}", "found \"..\", wanted the name of a file beside it" },
    { "{\"weight_map\":{\"a\":\"\"}}", "found \"\", wanted the name of a file beside it" },
    { "{\"weight_map\":{\"a\":\"3.safetensors\"}}",
      "3.safetensors: cannot be opened: No such file" },
    { "{\"weight_map\":{\"b\":\"1.safetensors\"}}",
      "weight_map: found no tensor b in 1.safetensors" },
    { "{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"1.safetensors\"}}",
      "found the key \"a\" twice" },
    { "{\"weight_map\":{\"a\":\"i.json\"}}", "i.json: found a header of" },
  };
  g_autofree char *one = path_in (*state, "1.safetensors"), *path = path_in (*state, "i.json");

  store_file (one, "{\"a\":" U8 (0, 2, "[2]") "}", 2);
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    store (path, rows[i].index, strlen (rows[i].index));
    assert_refused (path, rows[i].message);
  }
}

/* ------------------------------------------------------------------------ writing */

/* Declares two tensors, of 4 and 2 bytes, and writes `put` bytes of their data. Returns the writer,
 * which the caller closes. */
static weft_safetensors_writer *
write_some (const char *path, unsigned put)
{
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);

  weft_safetensors_declare_metadata (w, "format", "pt");
  weft_safetensors_declare (w, "x.\"y\"", WEFT_TENSOR_BF16, 2, (const uint64_t[]){ 1, 2 });
  weft_safetensors_declare (w, "z", WEFT_TENSOR_I8, 1, (const uint64_t[]){ 2 });
  for (unsigned i = 0; i < put; i++)
    assert_true (weft_safetensors_put (w, &(uint8_t){ 10 + i }, 1, NULL));
  return w;
}

static void
a_written_file_has_the_bytes_of_the_format (void **state)
{
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"x.\\\"y\\\"\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]},"
      "\"z\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[4,6]}}";
  g_autofree char *path = path_in (*state, "a.safetensors"), *bytes = NULL;
  uint64_t padded = (strlen (header) + 7) / 8 * 8, length;
  gsize n;

  assert_true (weft_safetensors_close (write_some (path, 6), NULL));
  assert_int_equal (files_in (*state, FALSE), 1);
  assert_true (g_file_get_contents (path, &bytes, &n, NULL));
  assert_int_equal (n, 8 + padded + 6);
  memcpy (&length, bytes, 8);
  assert_int_equal (length, padded);
  assert_memory_equal (bytes + 8, header, strlen (header));
  for (gsize i = 8 + strlen (header); i < 8 + padded; i++)
    assert_int_equal (bytes[i], ' ');
  assert_memory_equal (bytes + 8 + padded, "\12\13\14\15\16\17", 6);
  g_autoptr (weft_safetensors) file = open_good (path);
  assert_string_equal (weft_safetensors_at (file, 0)->name, "x.\"y\"");
}

/* The data of a safetensors file must begin at a multiple of eight, whatever the length of the
 * header. */
static void
data_begins_at_a_multiple_of_eight (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");

  for (unsigned i = 0; i < 8; i++) {
    weft_safetensors_writer *w = weft_safetensors_writer_new (path);
    g_autofree char *name = g_strnfill (i, 'n');
    g_autofree char *bytes = NULL;
    gsize n;
    weft_safetensors_declare (w, name, WEFT_TENSOR_F64, 0, NULL);
    assert_true (weft_safetensors_put (w, &(double){ 1 }, 8, NULL));
    assert_true (weft_safetensors_close (w, NULL));
    assert_true (g_file_get_contents (path, &bytes, &n, NULL));
    assert_int_equal (n % 8, 0);
    weft_safetensors_free (open_good (path));
  }
}

static void
a_name_holds_the_old_file_until_the_new_one_is_whole (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors"), *kept = NULL;
  g_autoptr (GError) error = NULL;

  store (path, "old", 3);
  weft_safetensors_abandon (write_some (path, 6));
  assert_false (weft_safetensors_close (write_some (path, 5), &error));
  assert_non_null (strstr (
      error->message, "a.safetensors: found 5 bytes of data, wanted the 6 bytes of the tensors"));
  assert_int_equal (weft_error_exit_status (error), 1);
  assert_int_equal (files_in (*state, FALSE), 1);
  assert_true (g_file_get_contents (path, &kept, NULL, NULL));
  assert_string_equal (kept, "old");
  assert_true (weft_safetensors_close (write_some (path, 6), NULL));
  weft_safetensors_free (open_good (path));
  weft_safetensors_abandon (NULL);
}

static void
a_folder_that_cannot_be_written_is_told (void **state)
{
  g_autofree char *path = path_in (*state, "no/a.safetensors");
  g_autoptr (GError) error = NULL;
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);

  assert_false (weft_safetensors_close (w, &error));
  assert_non_null (strstr (error->message, "no/a.safetensors: cannot be made: No such file"));
}

/* A path that names a pipe or a device is refused. Renaming the finished file to this path would
 * delete the device, if the user is root. */
static void
a_pipe_is_not_replaced (void **state)
{
  g_autofree char *path = path_in (*state, "pipe");
  g_autoptr (GError) error = NULL;
  GStatBuf info;

  assert_int_equal (mkfifo (path, 0600), 0);
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);
  assert_false (weft_safetensors_close (w, &error));
  assert_non_null (
      strstr (error->message, "pipe: found a directory, pipe or device, wanted a file"));
  assert_int_equal (g_stat (path, &info), 0);
  assert_true (S_ISFIFO (info.st_mode));
}

/* A limit on file sizes makes write() fail as a full disk does. */
static void
a_full_disk_leaves_nothing_behind (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");
  g_autofree char *zeros = g_malloc0 (1 << 16);
  g_autoptr (GError) error = NULL, again = NULL, last = NULL;
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);
  struct rlimit before, tight;

  weft_safetensors_declare (w, "x", WEFT_TENSOR_U8, 1, (const uint64_t[]){ 2 << 16 });
  getrlimit (RLIMIT_FSIZE, &before);
  tight = before;
  tight.rlim_cur = 1 << 15;
  void (*handler) (int) = signal (SIGXFSZ, SIG_IGN);
  setrlimit (RLIMIT_FSIZE, &tight);
  gboolean ok = weft_safetensors_put (w, zeros, 1 << 16, &error);
  setrlimit (RLIMIT_FSIZE, &before);
  signal (SIGXFSZ, handler);
  assert_false (ok);
  assert_non_null (strstr (error->message, "a.safetensors: cannot be written: File too large"));
  assert_int_equal (weft_error_exit_status (error), 1);
  assert_false (weft_safetensors_put (w, zeros, 1 << 16, &again));
  assert_false (weft_safetensors_close (w, &last));
  assert_int_equal (files_in (*state, FALSE), 0);
}

static void
a_new_file_may_be_read_by_whom_the_mask_allows (void **state)
{
  g_autofree char *path = path_in (*state, "a.safetensors");
  mode_t mask = umask (027);
  GStatBuf info;

  assert_true (weft_safetensors_close (write_some (path, 6), NULL));
  umask (mask);
  assert_int_equal (g_stat (path, &info), 0);
  assert_int_equal (info.st_mode & 0777, 0640);
}

#define TEST(name) cmocka_unit_test_setup_teardown (name, make_place, remove_place)
static const struct CMUnitTest tests[] = {
  TEST (entries_may_stand_in_any_order_and_be_empty_or_scalars),
  TEST (a_file_without_tensors_is_a_file),
  TEST (bad_files_are_refused_with_what_was_found_and_wanted),
  TEST (a_header_that_cannot_be_there_is_refused),
  TEST (damaged_files_never_crash),
  TEST (floats_of_four_types_are_exact),
  TEST (a_tensor_that_is_not_floats_is_refused_by_name),
  TEST (an_index_shows_its_shards_as_one_list),
  TEST (an_index_that_leads_nowhere_is_refused),
  TEST (a_written_file_has_the_bytes_of_the_format),
  TEST (data_begins_at_a_multiple_of_eight),
  TEST (a_name_holds_the_old_file_until_the_new_one_is_whole),
  TEST (a_folder_that_cannot_be_written_is_told),
  TEST (a_pipe_is_not_replaced),
  TEST (a_full_disk_leaves_nothing_behind),
  TEST (a_new_file_may_be_read_by_whom_the_mask_allows),
};

WEFT_TESTS (tests)
