/* Command packets as words, and what a finished one says. */
#include <stdio.h>
#include <string.h>

#include "dev/npu/npu_queue.h"

enum { HEADER_WORDS = 2 /* header, CU mask */, MAX_WORDS = 0x7ff, CHAIN_WORDS = 1 + sizeof(ob_npu_chain) / 4 };

static void put64(uint32_t *w, uint64_t v)
{
    w[0] = (uint32_t)v;
    w[1] = (uint32_t)(v >> 32);
}

static size_t finish(uint32_t *words, size_t n, uint32_t opcode, uint32_t type)
{
    words[0] = ob_npu_header(opcode, (uint32_t)n - 1, type);
    return n;
}

size_t ob_npu_packet_make_elf(uint32_t *words, size_t cap, uint64_t text, uint32_t text_bytes)
{
    enum { N = sizeof(ob_npu_packet_elf) / 4 };
    ob_npu_packet_elf p = {.cu_mask = 1, .text_size = text_bytes};
    if (cap < N || !text_bytes || text_bytes % 4 || text % 4) return 0;
    p.header = ob_npu_header(OB_NPU_OP_ELF, N - 1, OB_NPU_TYPE_CU);
    put64(p.text, text);
    memcpy(words, &p, sizeof p);
    return N;
}

size_t ob_npu_packet_make_npu(uint32_t *words, size_t cap, uint32_t cu_mask, uint64_t text, uint32_t text_bytes,
                              const uint32_t *args, size_t n_args)
{
    enum { FIXED = HEADER_WORDS + 4 };
    if (n_args > OB_NPU_START_NPU_ARGS || cap < FIXED + n_args || !cu_mask || !text_bytes || text_bytes % 4) return 0;
    words[1] = cu_mask;
    put64(words + 2, text);
    words[4] = text_bytes;
    words[5] = 0; /* properties */
    if (n_args) memcpy(words + FIXED, args, n_args * 4);
    return finish(words, FIXED + n_args, OB_NPU_OP_START_NPU, OB_NPU_TYPE_CU);
}

size_t ob_npu_packet_make_cu(uint32_t *words, size_t cap, uint32_t cu_mask, uint64_t text, uint32_t text_words,
                             const uint64_t *buffers, size_t n_buffers)
{
    enum { FIXED = HEADER_WORDS + 5, RUN_TEXT = 3 };
    if (n_buffers > 32 || cap < FIXED + 2 * n_buffers || !cu_mask || !text_words) return 0;
    words[1] = cu_mask;
    put64(words + 2, RUN_TEXT);
    put64(words + 4, text);
    words[6] = text_words;
    for (size_t i = 0; i < n_buffers; i++) put64(words + FIXED + 2 * i, buffers[i]);
    return finish(words, FIXED + 2 * n_buffers, OB_NPU_OP_START_CU, OB_NPU_TYPE_CU);
}

size_t ob_npu_packet_make_chain(uint32_t *words, size_t cap, const uint32_t *handles, size_t n)
{
    const ob_npu_chain chain = {.n_cmds = (uint32_t)n};
    if (!n || n > OB_NPU_CHAIN_MAX || CHAIN_WORDS + 2 * n > MAX_WORDS || cap < CHAIN_WORDS + 2 * n) return 0;
    memcpy(words + 1, &chain, sizeof chain);
    for (size_t i = 0; i < n; i++) put64(words + CHAIN_WORDS + 2 * i, handles[i]);
    return finish(words, CHAIN_WORDS + 2 * n, OB_NPU_OP_CHAIN, 0);
}

/* ---- results ---------------------------------------------------------------------------------- */

static const char *state_name(uint32_t state)
{
    static const char *const k_names[] = {"invalid", "new", "queued", "running", "completed", "error", "abort", "submitted", "timeout",
                                          "no response"};
    return state < sizeof k_names / sizeof *k_names ? k_names[state] : "unknown";
}

/* The firmware's words: version 1, generation, operation, program counter, four of a fatal error. Without any the driver
 * leaves ones. */
static void health_text(const uint32_t *first, size_t n_words, char *text, size_t cap)
{
    enum { VERSION = 1, TXN_OP = 3, PC = 4, FATAL = 5, EXCEPTION = 6, EXCEPTION_PC = 7, MODULE = 8, N };
    text[0] = 0;
    if (!first || n_words < N || first[VERSION] != 1) return;
    if (first[TXN_OP] != UINT32_MAX) snprintf(text, cap, " at operation %u of its text", first[TXN_OP]);
    else snprintf(text, cap, ", in no operation the firmware knows of");
    const size_t n = strlen(text);
    if (first[FATAL])
        snprintf(text + n, cap - n, " (fatal error %u, exception %u at %#x, module %#x, pc %#x)", first[FATAL], first[EXCEPTION],
                 first[EXCEPTION_PC], first[MODULE], first[PC]);
    else snprintf(text + n, cap - n, " (pc %#x)", first[PC]);
}

ob_status ob_npu_packet_result(const uint32_t *packet, const uint32_t *first, size_t first_words, ob_err *err)
{
    const uint32_t state = ob_npu_header_state(packet[0]);
    char where[64] = "the NPU command", health[160];
    if (state == OB_NPU_STATE_COMPLETED) return OB_OK;
    if (ob_npu_header_opcode(packet[0]) == OB_NPU_OP_CHAIN) {
        ob_npu_chain chain;
        memcpy(&chain, packet + 1, sizeof chain);
        snprintf(where, sizeof where, "NPU command %u of a chain of %u", chain.error_index + 1, chain.n_cmds);
    }
    health_text(first, first_words, health, sizeof health);
    switch (state) {
    case OB_NPU_STATE_TIMEOUT:
        return ob_err_set(err, OB_E_TIMEOUT, "%s did not end within the driver's %d ms%s", where, OB_NPU_TDR_MS, health);
    case OB_NPU_STATE_NO_RESPONSE:
        return ob_err_set(err, OB_E_DEVICE_LOST, "%s: the NPU's firmware does not answer%s", where, health);
    case OB_NPU_STATE_ERROR:
        return ob_err_set(err, OB_E_DEVICE, "%s failed%s", where, health);
    case OB_NPU_STATE_ABORT:
        return ob_err_set(err, OB_E_DEVICE, "%s was aborted%s", where, health);
    case OB_NPU_STATE_NEW:
        return ob_err_set(err, OB_E_DEVICE, "the driver did not take the NPU's packet (its state is still \"new\")");
    default:
        return ob_err_set(err, OB_E_DEVICE, "%s is said to be over, but its state is \"%s\"", where, state_name(state));
    }
}
