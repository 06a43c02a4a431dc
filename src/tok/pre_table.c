/* The table of pre-tokenisers: tokenizer.ggml.pre to steps. A new name is one line here; a new pattern
 * is a matcher in pre.c or, if speed matters less, a regex here.
 *
 * Patterns are those of the models' own tokenizer.json files; which name means which pattern is
 * GGUF's convention (llama.cpp's list).
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tok/pre.h"

/* Unicode White_Space for inside a class. PCRE2's own \s also takes U+180E, which lost it in Unicode
 * 6.3. */
#define WS "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"
#define LINES_SPACES "[" WS "]*[\\r\\n]+|" SPACES

/* Upper- and lower-case words of GPT-4o and Tekken. */
#define UP "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UP "*" LOW "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UP "+" LOW "*" tail

/* ---- Sources of the hand-written matchers ----------------------------------------------------- */

#define GPT2                                                                                      \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define LLAMA3(contraction, letter, digits)                                                       \
    contraction "[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits "| ?[^" WS letter                    \
                "\\p{N}]+[\\r\\n]*|" LINES_SPACES
#define DEEPSEEK3                                                                                 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"             \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_SPACES

static const struct {
    ob_pre_match match;
    const char *pattern;
} sources[] = {
    {ob_pre_match_gpt2, GPT2},
    {ob_pre_match_llama3, LLAMA3(CONTRACTION "|", "\\p{L}", "\\p{N}{1,3}")},
    {ob_pre_match_qwen2, LLAMA3(CONTRACTION "|", "\\p{L}", "\\p{N}")},
    {ob_pre_match_qwen35, LLAMA3(CONTRACTION "|", "\\p{L}\\p{M}", "\\p{N}")},
    {ob_pre_match_minicpm5, LLAMA3(CONTRACTION "|", "\\p{L}", "\\p{N}+")},
    {ob_pre_match_ufakzeka, LLAMA3("", "\\p{L}", "\\p{N}")},
    {ob_pre_match_deepseek3, DEEPSEEK3},
    {ob_pre_match_digit, "\\p{N}"},
    {ob_pre_match_digits3, "\\p{N}{1,3}"},
    {ob_pre_match_digits, "\\p{N}+"},
    {ob_pre_match_line, "[\\r\\n]"},
    {ob_pre_match_lines, "[^\\n]+|[\\n]+"},
    {ob_pre_match_space_letters, "[" WS "]?\\p{L}+"},
    {ob_pre_match_space_punctuation, "[" WS "]?\\p{P}+"},
    {ob_pre_match_han_kana, "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"},
    {ob_pre_match_han_hangul, "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"},
};

const char *ob_pre_oracle(ob_pre_match match)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (sources[i].match == match) return sources[i].pattern;
    return NULL;
}

/* ---- Patterns for PCRE2 ----------------------------------------------------------------------- */

/* DeepSeek LLM spells out the cased letters of Unicode. */
#define DEEPSEEK_LETTERS                                                                          \
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ" \
    "ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨ" \
    "K-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀" \
    "-𐳲𑢠-𑣟𞤀-𞥃]"
#define DEEPSEEK_PUNCTUATION "[!-/:-~！-／：-～‘-‟　-。]"

static const char gpt4o[] = CASED(CONTRACTION "?") "|\\p{N}{1,3}| ?[^" WS
                            "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_SPACES;
static const char tekken[] = CASED("") "|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_SPACES;
static const char bailing[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS
                              "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]|" SPACES;
static const char seed_coder[] = CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS
                                 "\\p{L}\\p{N}\\r\\n]+|" LINES_SPACES;
static const char bloom[] = " ?[^(" WS "|.,!?…。，、।۔،)]+";
static const char falcon[] = "[\\p{P}$+<=>^~|`]+";
static const char old_default[] = "[\\p{P}$+<=>^~|]+";
static const char three_ascii_digits[] = "[0-9][0-9][0-9]";
static const char deepseek_letters[] = "[" WS "]?" DEEPSEEK_LETTERS "+";
static const char deepseek_punctuation[] = "[" WS "]?" DEEPSEEK_PUNCTUATION "+";

/* ---- The table -------------------------------------------------------------------------------- */

typedef struct step_def {
    ob_pre_match match;
    const char *regex;
    bool trailing_space; /* cut in front of white space at the end of the piece */
} step_def;

typedef struct pre_def {
    const char *names; /* separated by single spaces */
    bool ignore_merges, add_bos;
    step_def steps[OB_PRE_MAX_STEPS]; /* up to the first empty one */
} pre_def;

#define MATCH(name) {.match = ob_pre_match_##name}
#define REGEX(pattern) {.regex = pattern}
#define TRAILING_SPACE {.trailing_space = true}

static const pre_def table[] = {
    {"gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat "
     "a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4",
     false, false, {MATCH(gpt2)}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     false, false, {MATCH(digit), MATCH(gpt2)}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     true, true, {MATCH(llama3)}},
    {"dbrx smaug-bpe chatglm-bpe", false, false, {MATCH(llama3)}},
    {"glm4 glm5", true, false, {MATCH(llama3)}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
     false, false, {MATCH(qwen2)}},
    {"qwen35", false, false, {MATCH(qwen35)}},
    {"minicpm5", true, false, {MATCH(digits3), MATCH(minicpm5)}},
    {"ufakzeka", false, false, {MATCH(ufakzeka)}},
    {"laguna", false, false, {MATCH(lines), MATCH(qwen2)}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", false, false,
     {MATCH(digits3), MATCH(han_kana), MATCH(deepseek3)}},
    {"deepseek-llm", false, false,
     {MATCH(line), REGEX(deepseek_letters), REGEX(deepseek_punctuation),
      TRAILING_SPACE, MATCH(han_hangul), MATCH(digits)}},
    {"deepseek-coder", false, false,
     {MATCH(line), MATCH(space_letters), MATCH(space_punctuation),
      MATCH(han_hangul), MATCH(digit)}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", false, false, {REGEX(gpt4o)}},
    {"tekken", true, true, {REGEX(tekken)}},
    {"bailingmoe bailingmoe2 llada-moe", false, false, {REGEX(bailing)}},
    {"seed-coder", false, false, {REGEX(seed_coder)}},
    {"poro-chat bloom gpt3-finnish", false, false, {REGEX(bloom)}},
    {"viking", false, false, {REGEX(bloom), MATCH(digit)}},
    {"falcon", false, false,
     {REGEX(falcon), MATCH(gpt2), REGEX(three_ascii_digits)}},
    {"default", false, false,
     {REGEX(old_default), MATCH(gpt2), MATCH(digits),
      REGEX(three_ascii_digits)}},
    {"gemma4", false, true, {MATCH(lines)}},
};

/* Next name of a list; NULL at the end. */
static const char *next_name(const char **list, size_t *len)
{
    while (**list == ' ') (*list)++;
    const char *name = *list;
    *len = strcspn(name, " ");
    *list += *len;
    return *len ? name : NULL;
}

static const pre_def *find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *list = table[i].names, *have;
        size_t n;
        while ((have = next_name(&list, &n)))
            if (n == len && memcmp(have, name, n) == 0) return &table[i];
    }
    return NULL;
}

const char *ob_pre_known(size_t i)
{
    return i < sizeof table / sizeof table[0] ? table[i].names : NULL;
}

/* The known names, for a message: the first name of each line, then how many more there are. */
static ob_status refuse(const char *name, size_t len, ob_err *err)
{
    char list[400] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int n = (int)strcspn(table[i].names, " ");
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%.*s", i ? ", " : "", n,
                               table[i].names);
    }
    return ob_err_set(err, OB_E_UNSUPPORTED,
                      "pre-tokeniser '%.*s' (tokenizer.ggml.pre) is not known; known are %s and names "
                      "for the same patterns", (int)(len < 60 ? len : 60), name, list);
}

ob_status ob_pre_new(const char *name, size_t len, ob_pre **out, ob_err *err)
{
    *out = NULL;
    const pre_def *def = find(name, len);
    if (!def) return refuse(name, len, err);
    ob_pre *p = ob_calloc(1, sizeof *p);
    if (!p) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the pre-tokeniser");
    p->ignore_merges = def->ignore_merges;
    p->add_bos = def->add_bos;
    for (int i = 0; i < OB_PRE_MAX_STEPS; i++) {
        const step_def *d = &def->steps[i];
        if (!d->match && !d->regex && !d->trailing_space) break;
        p->steps[p->n_steps++].match = d->match;
        ob_status s = d->regex ? ob_regex_new(d->regex, &p->steps[i].regex, err) : OB_OK;
        if (s != OB_OK) {
            ob_pre_free(p);
            return s;
        }
    }
    *out = p;
    return OB_OK;
}

void ob_pre_free(ob_pre *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_steps; i++) ob_regex_free(p->steps[i].regex);
    ob_free(p);
}

bool ob_pre_ignore_merges(const ob_pre *p) { return p->ignore_merges; }
bool ob_pre_add_bos(const ob_pre *p) { return p->add_bos; }
