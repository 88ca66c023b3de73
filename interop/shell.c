#include "interop/shell.h"
#include "core/base/error.h"
#include <string.h>

struct shell {
  const char *at, *name;
  unsigned line, depth;
  GHashTable *values; /* variable -> GPtrArray of texts: the words of an array, or one text */
  GPtrArray *commands;
  GArray *open; /* struct branch: the `if`s around this line */
};

enum truth { NO, YES, UNKNOWN };

/* An `if`: whether the commands of its current branch run, and whether a branch was taken. */
struct branch {
  enum truth taken, done;
};

static gboolean
cannot (const struct shell *s, GError **error, const char *what)
{
  return weft_bad_input (error, "%s:%u: %s", s->name, s->line, what);
}

static void
clear_word (gpointer data)
{
  g_free (((struct weft_shell_word *) data)->text);
}

static GArray *
words_new (void)
{
  GArray *words = g_array_new (FALSE, FALSE, sizeof (struct weft_shell_word));

  g_array_set_clear_func (words, clear_word);
  return words;
}

/* Appends a word. The array owns `text` afterwards. */
static void
push (const struct shell *s, GArray *words, char *text)
{
  struct weft_shell_word word = { text, s->line };
  g_array_append_val (words, word);
}

static const char *
text_at (const GArray *words, unsigned i)
{
  return g_array_index (words, struct weft_shell_word, i).text;
}

static gboolean
is_name (char c)
{
  return g_ascii_isalnum (c) || c == '_';
}

/* ------------------------------------------------------------------------- expansions */

/* A word while it is read: its text so far, and whether it has begun. */
struct word {
  GString *text;
  gboolean begun;
};

static void
end_word (struct shell *s, struct word *word, GArray *words)
{
  if (word->begun)
    push (s, words, g_strdup (word->text->str));
  g_string_truncate (word->text, 0);
  word->begun = FALSE;
}

/* Adds the text of an expansion. Outside of quotes, blanks divide the text into words. */
static void
add_text (struct shell *s, struct word *word, GArray *words, const char *text, gboolean quoted)
{
  for (; *text; text++)
    if (!quoted && g_ascii_isspace (*text))
      end_word (s, word, words);
    else {
      g_string_append_c (word->text, *text);
      word->begun = TRUE;
    }
}

/* Adds every word of an array, each as a word of its own. */
static void
add_all (struct shell *s, struct word *word, GArray *words, const GPtrArray *texts, gboolean quoted)
{
  for (unsigned i = 0; i < texts->len; i++) {
    if (i)
      end_word (s, word, words);
    add_text (s, word, words, texts->pdata[i], quoted);
    word->begun |= quoted;
  }
}

/* The end of a group that begins at `open`, with its own pairs counted; NULL: there is none. */
static const char *
closing (const char *open, char left, char right)
{
  int depth = 0;

  for (const char *at = open; *at; at++) {
    depth += (*at == left) - (*at == right);
    if (depth == 0)
      return at;
  }
  return NULL;
}

/* The text of a variable in a sum; a text that is no number counts as 0, as in a shell. */
static gint64
number_of (const struct shell *s, const char *name, size_t length)
{
  g_autofree char *key = g_strndup (name, length);
  const GPtrArray *value = g_hash_table_lookup (s->values, key);

  return value && value->len ? g_ascii_strtoll (value->pdata[0], NULL, 10) : 0;
}

/* Values of sums are cut to this size, so that none overflows. */
#define MOST_SUM ((gint64) 1 << 40)

static gint64
factor_of (const struct shell *s, const char **at)
{
  gint64 value = 0;

  while (**at == ' ' || **at == '$' || **at == '{' || **at == '(')
    (*at)++;
  if (g_ascii_isdigit (**at))
    value = g_ascii_strtoll (*at, (char **) at, 10);
  else if (is_name (**at)) {
    const char *from = *at;
    while (is_name (**at))
      (*at)++;
    value = number_of (s, from, *at - from);
  }
  while (**at == ' ' || **at == '}' || **at == ')')
    (*at)++;
  return CLAMP (value, -MOST_SUM, MOST_SUM);
}

/* $((A * B / C + D)), from left to right, with * / % before + and -. FALSE: another operator. */
static gboolean
sum_of (const struct shell *s, const char *text, gint64 *sum)
{
  gint64 total = 0, product = factor_of (s, &text), sign = 1;

  while (*text) {
    char op = *text++;
    gint64 next = factor_of (s, &text);
    if (op == '+' || op == '-') {
      total += sign * product;
      sign = op == '+' ? 1 : -1;
      product = next;
    } else if (op == '*')
      product = ABS (product) < 1 << 20 && ABS (next) < 1 << 20 ? product * next : MOST_SUM;
    else if ((op == '/' || op == '%') && next)
      product = op == '/' ? product / next : product % next;
    else
      return FALSE;
  }
  *sum = total + sign * product;
  return TRUE;
}

static gboolean
add_sum (struct shell *s, struct word *word, GArray *words, GError **error)
{
  const char *end = closing (s->at + 1, '(', ')');
  gint64 sum;

  if (!end)
    return cannot (s, error, "$(( has no end");
  g_autofree char *text = g_strndup (s->at + 3, end - s->at - 4);
  if (!sum_of (s, text, &sum))
    return cannot (s, error, "cannot compute this sum; wanted + - * / % of numbers and variables");
  g_autofree char *result = g_strdup_printf ("%" G_GINT64_FORMAT, sum);
  add_text (s, word, words, result, TRUE);
  s->at = end + 1;
  return TRUE;
}

/* Adds the words of a variable. The arguments of the script ("$@") are empty. A variable that the
 * script does not set stays as it is written. */
static void
add_variable (struct shell *s, struct word *word, GArray *words, const char *name,
              const char *written, gboolean quoted)
{
  const GPtrArray *value = g_hash_table_lookup (s->values, name);

  if (value)
    add_all (s, word, words, value, quoted);
  else if (strcmp (name, "@") != 0 && strcmp (name, "*") != 0)
    add_text (s, word, words, written, TRUE);
}

static gboolean
is_empty (const struct shell *s, const char *name)
{
  const GPtrArray *value = g_hash_table_lookup (s->values, name);
  return !value || value->len == 0 || (value->len == 1 && !*(const char *) value->pdata[0]);
}

/* ${NAME}, ${NAME[@]}, ${NAME:-DEFAULT}, ${NAME-DEFAULT}; another form stays as it is. */
static gboolean
add_braces (struct shell *s, struct word *word, GArray *words, gboolean quoted, GError **error)
{
  const char *end = closing (s->at + 1, '{', '}'), *rest = s->at + 2;

  if (!end)
    return cannot (s, error, "${ has no }");
  while (is_name (*rest))
    rest++;
  g_autofree char *name = g_strndup (s->at + 2, rest - s->at - 2);
  g_autofree char *form = g_strndup (rest, end - rest);
  g_autofree char *written = g_strndup (s->at, end + 1 - s->at);
  size_t sign = g_str_has_prefix (form, ":-") ? 2 : *form == '-' ? 1 : 0;
  if (sign && is_empty (s, name)) {
    g_autofree char *def = g_strdup (form + sign);
    g_strstrip (g_strdelimit (def, "\"'", ' '));
    add_text (s, word, words, def, quoted);
  } else if (sign || !*form || strcmp (form, "[@]") == 0 || strcmp (form, "[*]") == 0)
    add_variable (s, word, words, name, written, quoted);
  else
    add_text (s, word, words, written, TRUE);
  s->at = end + 1;
  return TRUE;
}

/* The output of a program is not known: $(program) stays as it is written. */
static gboolean
add_program (struct shell *s, struct word *word, GArray *words, GError **error)
{
  const char *end = closing (s->at + 1, '(', ')');

  if (!end)
    return cannot (s, error, "$( has no )");
  g_autofree char *written = g_strndup (s->at, end + 1 - s->at);
  add_text (s, word, words, written, TRUE);
  s->at = end + 1;
  return TRUE;
}

static gboolean
add_dollar (struct shell *s, struct word *word, GArray *words, gboolean quoted, GError **error)
{
  const char *end = s->at + 1;

  if (g_str_has_prefix (s->at, "$(("))
    return add_sum (s, word, words, error);
  if (*end == '(')
    return add_program (s, word, words, error);
  if (*end == '{')
    return add_braces (s, word, words, quoted, error);
  while (is_name (*end))
    end++;
  if (end == s->at + 1 && *end && strchr ("@*#?", *end))
    end++;
  g_autofree char *name = g_strndup (s->at + 1, end - s->at - 1);
  g_autofree char *written = g_strndup (s->at, end - s->at);
  add_variable (s, word, words, name, written, quoted);
  s->at = end;
  return TRUE;
}

/* ------------------------------------------------------------------------------ quotes */

static gboolean
add_single (struct shell *s, struct word *word, GError **error)
{
  const char *end = strchr (s->at + 1, '\'');

  if (!end)
    return cannot (s, error, "a quote is not closed");
  for (s->at++; s->at < end; s->at++) {
    s->line += *s->at == '\n';
    g_string_append_c (word->text, *s->at);
  }
  s->at++;
  return word->begun = TRUE;
}

static gboolean
add_double (struct shell *s, struct word *word, GArray *words, GError **error)
{
  word->begun |= s->at[1] == '"'; /* an array without words gives no word */
  for (s->at++; *s->at && *s->at != '"';)
    if (*s->at == '$') {
      if (!add_dollar (s, word, words, TRUE, error))
        return FALSE;
    } else {
      if (*s->at == '\\' && s->at[1])
        s->at++;
      s->line += *s->at == '\n';
      if (*s->at != '\n' || s->at[-1] != '\\') /* a continued line */
        g_string_append_c (word->text, *s->at);
      s->at++;
    }
  if (!*s->at)
    return cannot (s, error, "a quote is not closed");
  word->begun |= word->text->len > 0;
  s->at++;
  return TRUE;
}

/* ------------------------------------------------------------------------ one command */

/* The length of a line continuation (a backslash and a line end) at this place; 0: there is
 * none. */
static unsigned
continued (const char *at)
{
  return at[0] != '\\' ? 0 : at[1] == '\n' ? 2 : at[1] == '\r' && at[2] == '\n' ? 3 : 0;
}

/* Skips blanks, comments and continued lines. Returns whether there were any. */
static gboolean
skip_blanks (struct shell *s)
{
  const char *from = s->at;

  for (;;)
    if (g_ascii_isspace (*s->at) && *s->at != '\n')
      s->at++;
    else if (continued (s->at)) {
      s->at += continued (s->at);
      s->line++;
    } else if (*s->at == '#' && (s->at == from || g_ascii_isspace (s->at[-1])))
      s->at += strcspn (s->at, "\n");
    else
      return s->at > from;
}

/* Reads one word, whose expansions may give several or none. */
static gboolean
read_word (struct shell *s, GArray *words, const char *stops, GError **error)
{
  struct word word = { g_string_new (NULL), FALSE };
  gboolean ok = TRUE;

  while (ok && *s->at && !g_ascii_isspace (*s->at) && !strchr (stops, *s->at))
    if (*s->at == '$')
      ok = add_dollar (s, &word, words, FALSE, error);
    else if (*s->at == '\'')
      ok = add_single (s, &word, error);
    else if (*s->at == '"')
      ok = add_double (s, &word, words, error);
    else if (continued (s->at))
      break;
    else {
      s->at += *s->at == '\\' && s->at[1];
      g_string_append_c (word.text, *s->at++);
      word.begun = TRUE;
    }
  end_word (s, &word, words);
  g_string_free (word.text, TRUE);
  return ok;
}

static void
set_variable (struct shell *s, const char *name, const GArray *words, gboolean append,
              gboolean array)
{
  GPtrArray *value = g_hash_table_lookup (s->values, name);

  if (!value || !append)
    g_hash_table_replace (s->values, g_strdup (name),
                          value = g_ptr_array_new_with_free_func (g_free));
  if (append && !array && value->len && words->len) {
    char *joined = g_strconcat (value->pdata[0], text_at (words, 0), NULL);
    g_free (value->pdata[0]);
    value->pdata[0] = joined;
    return;
  }
  for (unsigned i = 0; i < words->len; i++)
    g_ptr_array_add (value, g_strdup (text_at (words, i)));
}

/* The words of an array, up to its closing parenthesis. */
static gboolean
read_array (struct shell *s, GArray *words, GError **error)
{
  for (s->at++;;) {
    skip_blanks (s);
    if (*s->at == '\n') {
      s->line++;
      s->at++;
    } else if (*s->at == ')') {
      s->at++;
      return TRUE;
    } else if (!*s->at)
      return cannot (s, error, "an array has no closing parenthesis");
    else if (!read_word (s, words, ")", error))
      return FALSE;
  }
}

/* The length of NAME= or NAME+= at the beginning of a word; 0: there is none. */
static size_t
assignment (const char *at)
{
  size_t n = 0;

  while (is_name (at[n]))
    n++;
  if (n == 0 || g_ascii_isdigit (*at))
    return 0;
  return at[n] == '=' ? n + 1 : at[n] == '+' && at[n + 1] == '=' ? n + 2 : 0;
}

/* Whether the commands of this line run, given the open `if`s. */
static enum truth
counts (const struct shell *s)
{
  enum truth truth = YES;

  for (unsigned i = 0; i < s->open->len; i++) {
    enum truth taken = g_array_index (s->open, struct branch, i).taken;
    if (taken == NO)
      return NO;
    truth = taken == UNKNOWN ? UNKNOWN : truth;
  }
  return truth;
}

/* Refuses a command in a branch whose condition cannot be evaluated. */
static gboolean
is_sure (const struct shell *s, GError **error)
{
  return counts (s) != UNKNOWN ||
         cannot (s, error,
                 "depends on a condition that is not evaluated; wanted [ A = B ], [ A -gt B ], "
                 "[ -z A ] or [ -n A ]");
}

static gboolean
read_assignment (struct shell *s, size_t length, GError **error)
{
  g_autoptr (GArray) words = words_new ();
  gboolean append = s->at[length - 2] == '+', array = s->at[length] == '(';
  g_autofree char *name = g_strndup (s->at, length - 1 - append);

  s->at += length;
  if (!(array ? read_array (s, words, error) : read_word (s, words, ";&|", error)))
    return FALSE;
  if (!array && words->len > 1) { /* the value of an assignment is one text, even with blanks */
    g_autoptr (GString) all = g_string_new (NULL);
    for (unsigned i = 0; i < words->len; i++)
      g_string_append_printf (all, "%s%s", i ? " " : "", text_at (words, i));
    g_array_set_size (words, 0);
    push (s, words, g_strdup (all->str));
  }
  if (!array && words->len == 0)
    push (s, words, g_strdup (""));
  if (counts (s) != NO)
    set_variable (s, name, words, append, array);
  return is_sure (s, error);
}

/* -------------------------------------------------------------------------- conditions */

static enum truth
compare (const char *left, const char *op, const char *right)
{
  static const char *const orders[] = { "-eq", "-ne", "-lt", "-le", "-gt", "-ge", NULL };
  gint64 a = g_ascii_strtoll (left, NULL, 10), b = g_ascii_strtoll (right, NULL, 10);
  const gboolean holds[] = { a == b, a != b, a<b, a <= b, a> b, a >= b };

  if (strcmp (op, "=") == 0 || strcmp (op, "==") == 0)
    return strcmp (left, right) == 0 ? YES : NO;
  if (strcmp (op, "!=") == 0)
    return strcmp (left, right) == 0 ? NO : YES;
  for (unsigned i = 0; orders[i]; i++)
    if (strcmp (orders[i], op) == 0)
      return holds[i] ? YES : NO;
  return UNKNOWN;
}

/* The text of a word in a condition; a variable that the script does not set is empty. */
static const char *
operand (const GArray *words, unsigned i)
{
  const char *text = text_at (words, i);
  return *text == '$' ? "" : text;
}

static gboolean
is_bracket (const char *text)
{
  return strcmp (text, "[") == 0 || strcmp (text, "[[") == 0 || strcmp (text, "]") == 0 ||
         strcmp (text, "]]") == 0;
}

/* [ A = B ], [[ A == B ]], [ -z A ], [ -n A ], with ! in front. */
static enum truth
condition_of (const GArray *words)
{
  unsigned first = 0, n = words->len;
  enum truth truth = UNKNOWN;

  first += n && is_bracket (text_at (words, 0));
  n -= n > first && is_bracket (text_at (words, n - 1));
  gboolean not = first < n && strcmp (text_at (words, first), "!") == 0;
  first += not ;
  if (n == first + 2 && strcmp (text_at (words, first), "-z") == 0)
    truth = *operand (words, first + 1) ? NO : YES;
  else if (n == first + 2 && strcmp (text_at (words, first), "-n") == 0)
    truth = *operand (words, first + 1) ? YES : NO;
  else if (n == first + 3)
    truth =
        compare (operand (words, first), text_at (words, first + 1), operand (words, first + 2));
  return truth == UNKNOWN || !not ? truth : truth == YES ? NO : YES;
}

/* Reads the words of one command, up to the end of its line or a separator. */
static gboolean
read_words (struct shell *s, GArray *words, GError **error)
{
  for (;;) {
    skip_blanks (s);
    if (!*s->at || *s->at == '\n' || *s->at == ';' || *s->at == '|' || *s->at == '&')
      return TRUE;
    if (*s->at == '<' || *s->at == '>')
      s->at += strspn (s->at, "<>&");
    else if (*s->at == '(' || *s->at == ')')
      s->at++; /* a subshell has the commands of the script */
    else if (!read_word (s, words, ";|&<>()", error))
      return FALSE;
  }
}

/* The truth of conditions with && and || between them, from left to right. */
static gboolean
read_condition (struct shell *s, enum truth *truth, GError **error)
{
  char op = '\0';

  for (;;) {
    g_autoptr (GArray) words = words_new ();
    if (!read_words (s, words, error))
      return FALSE;
    enum truth next = condition_of (words);
    if (!op)
      *truth = next;
    else if (op == '|')
      *truth = *truth == YES || next == YES ? YES : *truth == NO ? next : UNKNOWN;
    else
      *truth = *truth == NO || next == NO ? NO : *truth == YES ? next : UNKNOWN;
    if (!g_str_has_prefix (s->at, "&&") && !g_str_has_prefix (s->at, "||"))
      return TRUE;
    op = *s->at;
    s->at += 2;
  }
}

static gboolean
open_branch (struct shell *s, gboolean another, GError **error)
{
  struct branch branch = { NO, NO };
  enum truth truth;

  if (another && s->open->len == 0)
    return cannot (s, error, "elif without if");
  if (!read_condition (s, &truth, error))
    return FALSE;
  if (another) {
    branch = g_array_index (s->open, struct branch, s->open->len - 1);
    g_array_set_size (s->open, s->open->len - 1);
  }
  branch.taken = branch.done == YES ? NO : branch.done == NO || truth == NO ? truth : UNKNOWN;
  branch.done = branch.done == YES || truth == YES           ? YES
                : branch.done == UNKNOWN || truth == UNKNOWN ? UNKNOWN
                                                             : NO;
  g_array_append_val (s->open, branch);
  return TRUE;
}

static gboolean
turn_branch (struct shell *s, gboolean close, GError **error)
{
  if (s->open->len == 0)
    return cannot (s, error, close ? "fi without if" : "else without if");
  struct branch *branch = &g_array_index (s->open, struct branch, s->open->len - 1);
  branch->taken = branch->done == UNKNOWN ? UNKNOWN : branch->done == YES ? NO : YES;
  branch->done = YES;
  if (close)
    g_array_set_size (s->open, s->open->len - 1);
  return TRUE;
}

/* ---------------------------------------------------------------------------- commands */

/* The length of a word of letters at this place. */
static size_t
letters (const char *at)
{
  size_t n = 0;

  while (g_ascii_islower (at[n]))
    n++;
  return g_ascii_isspace (at[n]) || !at[n] || at[n] == ';' ? n : 0;
}

static gboolean
is_word (const struct shell *s, size_t length, const char *word)
{
  return length == strlen (word) && strncmp (s->at, word, length) == 0;
}

/* A word of the shell's grammar at the beginning of a command. *handled: it was one. */
static gboolean
read_keyword (struct shell *s, gboolean *handled, GError **error)
{
  static const char *const refused[] = { "for", "while", "until", "case", "select", "function" };
  static const char *const skipped[] = { "then",     "do",   "export", "declare", "local",
                                         "readonly", "exec", "time",   "eval" };
  size_t n = letters (s->at);

  *handled = TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (refused); i++)
    if (is_word (s, n, refused[i]) && counts (s) != NO)
      return weft_bad_input (error,
                             "%s:%u: `%s` is not followed; give the arguments that the "
                             "script passes",
                             s->name, s->line, refused[i]);
  for (unsigned i = 0; i < G_N_ELEMENTS (skipped); i++)
    if (is_word (s, n, skipped[i])) {
      s->at += n;
      return TRUE;
    }
  gboolean branch = is_word (s, n, "if") || is_word (s, n, "elif");
  gboolean turn = is_word (s, n, "else") || is_word (s, n, "fi");
  gboolean second = is_word (s, n, "elif"), close = is_word (s, n, "fi");
  if (branch || turn)
    s->at += n;
  *handled = branch || turn;
  return branch ? open_branch (s, second, error) : turn ? turn_branch (s, close, error) : TRUE;
}

static gboolean run (struct shell *s, GError **error);

/* `sh -c "commands"` runs the commands. */
static gboolean
run_inner (struct shell *s, const GArray *words, GError **error)
{
  for (unsigned i = 0; i + 2 < words->len; i++) {
    g_autofree char *base = g_path_get_basename (text_at (words, i));
    if (!g_str_has_suffix (base, "sh") || !g_str_has_prefix (text_at (words, i + 1), "-") ||
        !g_str_has_suffix (text_at (words, i + 1), "c"))
      continue;
    if (s->depth == 4)
      return cannot (s, error, "sh -c in sh -c in sh -c is not followed");
    struct shell inner = *s;
    inner.at = text_at (words, i + 2);
    inner.depth++;
    return run (&inner, error);
  }
  return TRUE;
}

/* Whether a command runs a Python file. */
static gboolean
is_launch (const GArray *words)
{
  for (unsigned i = 0; i < words->len; i++)
    if (g_str_has_suffix (text_at (words, i), ".py") && !strchr (text_at (words, i), ' '))
      return TRUE;
  return FALSE;
}

static gboolean
read_command (struct shell *s, GError **error)
{
  g_autoptr (GArray) words = words_new ();
  size_t length;
  gboolean keyword;

  if (!read_keyword (s, &keyword, error))
    return FALSE;
  if (keyword)
    return TRUE;
  while ((length = assignment (s->at))) {
    if (!read_assignment (s, length, error))
      return FALSE;
    skip_blanks (s);
  }
  if (!read_words (s, words, error))
    return FALSE;
  if (words->len == 0 || counts (s) == NO)
    return TRUE;
  if ((is_launch (words) && !is_sure (s, error)) || !run_inner (s, words, error))
    return FALSE;
  g_ptr_array_add (s->commands, g_steal_pointer (&words));
  return TRUE;
}

static gboolean
run (struct shell *s, GError **error)
{
  for (;;) {
    skip_blanks (s);
    if (!*s->at)
      return TRUE;
    if (*s->at == '\n' || strchr (";&|{}()", *s->at)) {
      s->line += *s->at == '\n';
      s->at++;
    } else if (!read_command (s, error))
      return FALSE;
  }
}

static void
unref_words (gpointer words)
{
  g_array_unref (words);
}

GPtrArray *
weft_shell_commands (const char *text, const char *name, GError **error)
{
  g_autoptr (GPtrArray) commands = g_ptr_array_new_with_free_func (unref_words);
  g_autoptr (GHashTable) values =
      g_hash_table_new_full (g_str_hash, g_str_equal, g_free, (GDestroyNotify) g_ptr_array_unref);
  g_autoptr (GArray) open = g_array_new (FALSE, FALSE, sizeof (struct branch));
  struct shell s = {
    .at = text, .name = name, .line = 1, .values = values, .commands = commands, .open = open
  };

  if (!run (&s, error))
    return NULL;
  if (open->len) {
    cannot (&s, error, "an if has no fi");
    return NULL;
  }
  return g_steal_pointer (&commands);
}
