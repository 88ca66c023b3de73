/* Wiring of nodes: the matrix of nvidia-smi and the XML file of NCCL.  What is accepted makes a
 * topology file, or is refused because the base is another node. */
#include "interop/wiring.h"
#include "tests/fuzz/fuzz.h"

static void
feed (const struct weft_wiring_format *format, const char *text)
{
  g_autoptr (GError) error = NULL;
  struct weft_wiring wiring;

  if (!format->read (text, "fuzz", &wiring, &error)) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return;
  }
  g_assert_no_error (error);
  g_assert_cmpuint (wiring.gpus, >, 0);
  g_autofree char *topology = weft_wiring_topology (&wiring, "dgx-h100", "fuzz", &error);
  g_assert_true ((topology != NULL) == (error == NULL));
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);

  if (!g_utf8_validate ((const char *) data, (gssize) size, NULL))
    return 0;
  for (unsigned i = 0; weft_wiring_formats[i].name; i++)
    feed (&weft_wiring_formats[i], text);
  return 0;
}
