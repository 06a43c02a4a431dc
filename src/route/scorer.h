/* route/scorer.h: a small encoder that answers typed questions about a conversation.
 *
 * Owns: how a question and a conversation become tokens, and how scores become a decision. Two kinds of
 * model are known: Laya (ModernBERT with a decision head: any question, one score per option) and
 * classifiers (an encoder with decision.type = "classes": the classes of its output_labels, nothing else).
 * Must not know devices' policies, HTTP or what a decision is used for.
 *
 * Threads: a scorer is immutable after load and its encoder has a thread of its own; any thread may ask.
 */
#ifndef OB_ROUTE_SCORER_H
#define OB_ROUTE_SCORER_H

#include <jansson.h>

#include "engine/encoder.h"

enum {
    OB_MAX_OPTIONS = 16,
    OB_ROUTE_GATE_BYTES = 1024, /* a conversation of so many bytes is a long_doc without any model */
};

/* The kinds of answer that routing tells apart. */
typedef enum ob_class { OB_CLASS_CODE, OB_CLASS_PROSE, OB_CLASS_SHORT, OB_CLASS_LONG_DOC, OB_CLASS_COUNT } ob_class;
const char *ob_class_name(ob_class c);
/* OB_CLASS_COUNT when no class has this name. */
ob_class ob_class_find(const char *name);

/* A conversation as the scorer sees it: the texts of its messages in order, whatever their role. */
typedef struct ob_turns {
    const ob_str *texts; /* [n], borrowed */
    int32_t n;
} ob_turns;
/* Bytes of the texts with a newline between two. */
size_t ob_turns_bytes(const ob_turns *t);

typedef enum ob_question_type { OB_QUESTION_CHOICE, OB_QUESTION_SCORE, OB_QUESTION_NOUL } ob_question_type;

typedef struct ob_qoption {
    char *label, *text; /* text: what the option means; may be NULL */
} ob_qoption;

/* Strings are owned by the question. */
typedef struct ob_question {
    ob_question_type type;
    char *instructions;
    ob_qoption options[OB_MAX_OPTIONS];
    int32_t n_options;
} ob_question;

/* Which of code, prose and short a request needs; borrowed, for ever. */
const ob_question *ob_question_classes(void);
/* {"type": "choice" | "score" | "noul", "instructions": text, "options": [...] or {label: text}}. An option is
 * a label or {"label", "text"}. noul has none of its own: they are false and true. score takes a list of
 * texts, from level 0 up. Errors: INVALID names the field. `what` names the source in errors. */
OB_MUST_CHECK ob_status ob_question_parse(const json_t *v, const char *what, ob_question *out, ob_err *err);
void ob_question_deinit(ob_question *q);

typedef struct ob_decision {
    int32_t n, best;              /* options, and the likeliest of them */
    float logits[OB_MAX_OPTIONS]; /* as the model gives them */
    float probs[OB_MAX_OPTIONS];  /* softmax(logits / temperature) */
    float confidence;             /* 1 - entropy / ln n: 1 sure, 0 no idea */
    int32_t n_tok;                /* tokens that the model saw */
    double ms;                    /* from the question to the answer */
} ob_decision;

typedef struct ob_scorer ob_scorer;

/* Loads (blocking). Errors: those of ob_encoder_new; UNSUPPORTED when the model has no decision head, or
 * is Laya in the layout of another program. */
OB_MUST_CHECK ob_status ob_scorer_new(const ob_engine_params *p, ob_scorer **out, ob_err *err);
void ob_scorer_free(ob_scorer *s); /* every job must have ended */
const ob_encoder *ob_scorer_encoder(const ob_scorer *s); /* borrowed, for describing it */
/* Its classes in the scorer's own order; false when it takes any question (Laya). */
bool ob_scorer_is_classifier(const ob_scorer *s);

/* Token ids of a question and a conversation; *ids is *taken*. marks: room for OB_MAX_OPTIONS; a Laya scorer
 * fills one for each option. Errors: UNSUPPORTED (a classifier is asked something else), INVALID (options
 * that leave no room). For tests and for those who want to see. */
OB_MUST_CHECK ob_status ob_scorer_tokens(const ob_scorer *s, const ob_question *q, const ob_turns *t, int32_t **ids,
                                         int32_t *n_ids, int32_t *marks, ob_err *err);

/* Ask and wait. */
OB_MUST_CHECK ob_status ob_scorer_ask(ob_scorer *s, const ob_question *q, const ob_turns *t, ob_decision *out,
                                      ob_err *err);

/* Ask without waiting. on_done comes once, on the encoder's thread, and must not block; `d` is NULL unless
 * status is OB_OK. The job is freed by ob_score_job_free, at once or later: on_done still comes, unless
 * cancelled is returned as its status. q and t are borrowed for the call only. */
typedef struct ob_score_job ob_score_job;
OB_MUST_CHECK ob_status ob_scorer_submit(ob_scorer *s, const ob_question *q, const ob_turns *t,
                                         void (*on_done)(void *arg, ob_status s, const ob_err *err,
                                                         const ob_decision *d),
                                         void *arg, ob_score_job **out, ob_err *err);
void ob_score_job_cancel(ob_score_job *j);
/* After on_done (also from within it). */
void ob_score_job_free(ob_score_job *j);

/* probs, best and confidence from n logits and a temperature, which is held within 0.5 and 5. */
void ob_decision_make(ob_decision *d, const float *logits, int32_t n, double temperature);

#endif
