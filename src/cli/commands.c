#include "cli/commands.h"

#include <string.h>

#include "base/math.h"

static const ob_command k_commands[] = {
    {OB_CMD_SERVE, "serve", "", 0, 0, "serve a model: OpenAI's API and a chat page",
     "Loads MODEL (without -m the demo model) and answers on http://HOST:PORT: /v1/chat/completions, "
     "/v1/completions, /v1/models, /health and more (see docs/api.md); a browser shows a chat page. "
     "/health answers 503 until the model has been loaded.\n\n"
     "A server that listens on this machine only (the default) refuses requests for other host names "
     "and from web pages of elsewhere. Before listening on another address, set --api-key.\n\n"
     "SIGINT or SIGTERM ends it: running requests get 4 seconds to finish; a second signal cancels "
     "them at once.",
     ob_cmd_serve},
    {OB_CMD_RUN, "run", "[TEXT…]", 0, -1, "one prompt, one reply",
     "Answers the prompt (--prompt, --file, the words of the command line, or standard input) through "
     "the model's chat template and prints the reply as it comes. With --raw, or when the model has no "
     "template, the text is continued as it is.",
     ob_cmd_run},
    {OB_CMD_CHAT, "chat", "", 0, 0, "a conversation on the terminal",
     "Lines are edited and remembered; /help lists the commands; Ctrl-C stops a reply.", ob_cmd_chat},
    {OB_CMD_EMBED, "embed", "[TEXT…]", 0, -1, "vectors of texts",
     "Prints the embedding of each TEXT, or of each line of standard input, as a line of numbers of "
     "length 1 (in the sense of vectors). Takes encoders (BERT, ModernBERT: GGUF, or a folder with "
     "model.safetensors) and, with their last token's vector, other models too.",
     ob_cmd_embed},
    {OB_CMD_CLASSIFY, "classify", "[TEXT…]", 0, -1, "what kind of answer a request needs",
     "Prints the class of a request (code, prose, short; long_doc from 1,024 bytes on, without asking the model) and "
     "how sure the model is of it, from 0 to 1. TEXT is one text, else standard input is. With --question the model "
     "answers another question; only Laya models can.\n\n"
     "With --json and no TEXT, standard input is a JSON list of conversations (lists of messages as in the API, or "
     "texts), and a list of {class, confidence, probabilities} is printed.",
     ob_cmd_classify},
    {OB_CMD_POLICY, "policy", "ACTION [TEXT…]", 1, -1, "which device serves which kind of request",
     "measure: runs prompts of --lengths on each of --targets and times the first token, each further one, the same "
     "with four requests at once, and a decision; picks a target for each class and length, by a margin that noise "
     "does not pass, and writes the policy to --output. Nothing else should be running meanwhile.\n\n"
     "show: what --route-policy says (with --json as a file). explain: what would become of a request with this TEXT.",
     ob_cmd_policy},
    {OB_CMD_BENCH, "bench", "", 0, 0, "speed of a model on this machine",
     "Measures prompt processing (pp) and generation (tg) in tokens per second, by --n-prompt, "
     "--n-gen, --depth (tokens already in the cache) and --sequences (sequences run together). Each test "
     "warms up (half a second on a GPU), then runs --repetitions times; the median is printed.",
     ob_cmd_bench},
    {OB_CMD_INFO, "info", "FILE", 0, 1, "what is in a model file",
     "Prints the metadata and the tensors of a model file: format, architecture, sizes, types. FILE "
     "is a path or the name of a model of the library. Only the header is read. With "
     "--architectures the architectures that this program knows, without a FILE.",
     ob_cmd_info},
    {OB_CMD_TOKENIZE, "tokenize", "[TEXT]", 0, 1, "text to token ids",
     "Takes TEXT, or reads it from standard input, and prints its token ids with the text of each, or with --json "
     "an array of the ids. Tokens that the model wants in front of a text are added, and the "
     "spelling of a control token becomes that token; --no-bos and --no-special turn this off.",
     ob_cmd_tokenize},
    {OB_CMD_DEVICES, "devices", "", 0, 0, "what this machine can run models on", NULL, ob_cmd_devices},
    {OB_CMD_DOCTOR, "doctor", "", 0, 0, "is this machine ready, and if not, what to do",
     "Looks at the processor, memory, devices, the model library, disk space and the port. Exits with 1 "
     "when something is bad.",
     ob_cmd_doctor},
    {OB_CMD_NPU, "npu", "ACTION", 1, 1, "does AMD's NPU do what it should",
     "selftest: opens the NPU of --device (npu, npu:1, or npu-soft; auto is npu) and climbs a ladder: a command that does "
     "nothing, a copy, int8 products compared to the bit with the processor's, 4-bit products. Stops at the first step that "
     "fails and says why. On hardware it also prints latency, bandwidth, and what the products of a 7B model alone would "
     "allow in tokens per second. npu-soft is a software model: its steps are checked, and no speed is printed.\n\n"
     "Exits with 1 when a step failed.",
     ob_cmd_npu},
    {OB_CMD_CHECK, "check", "MODEL", 0, 1, "does a model give the right answers on a device",
     "A model with reference logits beside it (NAME.npz for NAME.gguf, or exact_TYPE in BASE.npz for "
     "BASE-TYPE.gguf) is compared with them at every position; another is asked a few questions that any "
     "language model of use can answer: small models miss one or two, so only a model that misses more than half "
     "is wrong. An encoder is compared with reference vectors or scores, or else asked which of two texts is nearer "
     "to a third. With --all-golden (and no MODEL) every model of a folder that has reference logits "
     "is compared on every device (or on that of --device): a table of architectures and devices. With --against "
     "DEVICE the greedy text of MODEL must be what it is there, but where the best two tokens there are nearer "
     "than 0.02. That holds with --exact; without it activations are rounded to 8 bits (or 16 on some GPUs), and a last "
     "bit that another order of sums turns grows, from layer to layer, to as much as the rounding itself.\n\n"
     "Exits with 1 when something is wrong: for reference logits a single model on a single device that is "
     "WRONG or failed. What a device says it does not support is not wrong in the table of --all-golden; for "
     "one MODEL it is a failure.",
     ob_cmd_check},
    {OB_CMD_PERPLEXITY, "perplexity", "", 0, 0, "how well a model predicts a text",
     "The text (--file, or standard input) is cut into chunks of --ctx-size tokens; "
     "the second half of each is scored. Figures compare with llama.cpp's tool of the same name.\n\n"
     "With --kl-divergence-base the logits are also written to a file, for `1bit kld` or llama.cpp's "
     "tool to compare other models with: 2 bytes for each entry of the vocabulary and token scored.",
     ob_cmd_perplexity},
    {OB_CMD_KLD, "kld", "", 0, 0, "how far a model is from a base model",
     "Runs the text of --kl-divergence-base through the model and prints the Kullback-Leibler divergence "
     "of its predictions from the base's (mean with standard error, percentiles), both perplexities and "
     "their ratio, and how often the likeliest tokens agree. The file is one that `1bit perplexity "
     "--kl-divergence-base` or llama.cpp's perplexity tool wrote.",
     ob_cmd_kld},
    {OB_CMD_LOGITS, "logits", "", 0, 0, "raw logits of a list of token ids",
     "Runs the ids of --ids-file through the model and writes a NumPy array of float32 "
     "[ids, vocabulary] to --output, a row for every position.",
     ob_cmd_logits},
    {OB_CMD_QUANTIZE, "quantize", "SRC DST TYPE", 3, 3, "a smaller copy of a model",
     "Writes the model SRC to the GGUF file DST with weights of TYPE: F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S "
     "Q5_1 Q5_0 Q4_K_M Q4_K_S IQ4_NL IQ4_XS Q4_1 Q4_0 NVFP4 MXFP4 MXFP4_MOE Q3_K_L Q3_K_M Q3_K_S Q2_K Q2_K_S "
     "Q2_0 TQ2_0 TQ1_0 Q1_0. These are the mixes of llama.cpp: which tensor gets which type is the same there. "
     "A row that does not fit the blocks of its type gets a larger type.\n\n"
     "SRC should hold F32, F16, BF16 or Q8_0; it may be a GGUF file, a 1BP package or safetensors. With --imatrix the columns that matter more are kept more "
     "exactly; `1bit imatrix` makes the file. DST appears when it is complete, in place of one that was there; "
     "nothing is left of a run that is stopped.",
     ob_cmd_quantize},
    {OB_CMD_IMATRIX, "imatrix", "", 0, 0, "which weights matter, for quantize",
     "Runs a text (--file, or standard input) through the model in chunks of --ctx-size tokens "
     "and writes the mean square of what each column of each matrix multiplies to --output, in "
     "llama.cpp's GGUF form. Runs on the CPU.",
     ob_cmd_imatrix},
    {OB_CMD_ROTATE, "rotate", "SRC DST", 2, 2, "a Q4_0 copy whose weights are Hadamard-rotated",
     "Multiplies the matrices of attention and feed-forward layers (experts too) by the 32-point "
     "Walsh-Hadamard transform along their rows and quantises them to Q4_0; the rest is kept in 4.5 to 8.5 "
     "bits. The file is marked (onebit.hadamard_q4_0 = 32), and a device that cannot rotate activations "
     "refuses it. Other engines do not know the mark: they load the file and write nonsense. DST appears when it "
     "is complete, in place of one that was there.",
     ob_cmd_rotate},
    {OB_CMD_PULL, "pull", "NAME", 1, 1, "download a model into the library",
     "NAME is a name that `1bit list` shows (with --force a model of the library is fetched again from where it "
     "came), a file on Hugging Face written as "
     "hf://OWNER/REPO[@REVISION]/FILE.gguf, or an http(s) address that ends in .gguf. Naming one "
     "part of a split file fetches all of them.\n\n"
     "Prints the path of the model; all else that is said goes to standard error. A download that "
     "was cut off goes on where it stopped. The SHA-256 is checked when it is "
     "known, and a model is listed only when it is complete. HF_ENDPOINT or ONEBIT_HF_ENDPOINT "
     "names another host that speaks like Hugging Face; HF_TOKEN is sent to that host only.",
     ob_cmd_pull},
    {OB_CMD_LIST, "list", "", 0, 0, "models of the library, and those that can be pulled by name",
     "The library is $XDG_DATA_HOME/1bit/models, or ~/.local/share/1bit/models.", ob_cmd_list},
    {OB_CMD_RM, "rm", "NAME", 1, 1, "remove a model from the library",
     "Removes the files of the model, those of an unfinished download too.", ob_cmd_rm},
    {OB_CMD_CONVERT, "convert", "SRC DST", 2, 2, "make a 1BP package from a GGUF file",
     "SRC is a GGUF file (of a split one, any part), or one on Hugging Face, written as "
     "hf://OWNER/REPO[@REVISION]/FILE.gguf, or an http(s) address that ends in .gguf. A remote file is "
     "read by range requests, so that only the package takes room on the disk; a conversion that "
     "was cut off goes on where it stopped. HF_ENDPOINT, ONEBIT_HF_ENDPOINT and HF_TOKEN work as for "
     "pull.\n\n"
     "DST appears when it is complete; on its way it is DST.part. Metadata and tensors are copied byte "
     "for byte (see docs/onebp.md), so the package gives the same answers as the file.",
     ob_cmd_convert},
    {OB_CMD_CHECK_1BP, "check-1bp", "GGUF 1BP", 2, 2, "compare a 1BP package with its GGUF file",
     "Compares the metadata, and name, shape, type, size, alignment and bytes of each tensor, then all "
     "bytes besides. Prints a line for each difference and at the end OK or FAIL with the number of "
     "tensors and metadata keys. A file 1BP.sums beside the package is checked, too. Exits with 1 when "
     "something differs.",
     ob_cmd_check_1bp},
    {OB_CMD_GATES, "gates", "", 0, 0, "may a device become the default on this machine",
     "Measures on this machine whether --candidate can take the place of --baseline. (a) decode within 10 % on --models, in "
     "rounds by turns; (b) every architecture that the baseline runs right: models with reference numbers, the same "
     "distributions from --models, and a record found in a long prompt; (c) speculative decoding, several sequences per "
     "batch, and pictures. Each gate is closed, open (with the number), or not measurable here (with the reason; an "
     "emulation never gives a speed). Nothing else should be running meanwhile.\n\n"
     "The report is kept in $XDG_STATE_HOME/1bit/gates (or ~/.local/state). --device auto takes the candidate in place of "
     "the baseline only while all gates are closed, for this machine, driver and version; `1bit devices` and `1bit doctor` "
     "say what the report is worth. Exits with 0 when it was made, whatever it says.",
     ob_cmd_gates},
    {OB_CMD_VERSION, "version", "", 0, 0, "version of this program", NULL, ob_cmd_version},
    {OB_CMD_HELP, "help", "[COMMAND]", 0, 1, "help on all commands or on one", NULL, ob_cmd_help},
};

const ob_command *ob_cli_command(int index) { return &k_commands[index]; }
int ob_cli_n_commands(void) { return (int)OB_COUNT(k_commands); }

const ob_command *ob_cli_find_command(const char *name)
{
    for (size_t i = 0; i < OB_COUNT(k_commands); i++)
        if (!strcmp(k_commands[i].name, name)) return &k_commands[i];
    return NULL;
}
