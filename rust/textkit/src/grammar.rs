//! Constrained output: which tokens may come next under a JSON schema, a Lark grammar or a regular
//! expression. The work is llguidance's; this is its C face (see `include/textkit.h`).

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::template::Failure;
use crate::TkStatus;

/// What all grammars of one tokenizer share.
pub struct Vocab {
    factory: ParserFactory,
    env: TokEnv,
}

const SPACE: &str = r" |\n[\x20\x09]{0,24}";

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrammarKind {
    JsonSchema = 0,
    Lark = 1,
    Regex = 2,
}

/// One reply's place in a grammar.
pub struct TkMatcher {
    matcher: Matcher,
    env: TokEnv,
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::new(TkStatus::Syntax, what.to_string())
}

impl Vocab {
    /// `tokens[i]`: the bytes of token i; `None` for a token that no text has (control, unused).
    pub fn new(tokens: &[Option<&[u8]>], eos: u32) -> Result<Self, Failure> {
        let n = u32::try_from(tokens.len()).map_err(failed)?;
        if eos >= n {
            return Err(Failure::new(TkStatus::Input, "the end token is not in the vocabulary"));
        }
        let words: Vec<Vec<u8>> = tokens
            .iter()
            .enumerate()
            .map(|(id, t)| match t {
                // An empty word is never allowed; the end token must be known by its mark.
                Some(bytes) if id as u32 != eos => bytes.to_vec(),
                _ if id as u32 == eos => [&[TokTrie::SPECIAL_TOKEN_MARKER], &b"<end>"[..]].concat(),
                _ => Vec::new(),
            })
            .collect();
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(n, eos), &words)));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(failed)?;
        factory.quiet();
        Ok(Self { factory, env })
    }

    pub fn matcher(&self, kind: GrammarKind, text: &str) -> Result<TkMatcher, Failure> {
        let grammar = match kind {
            GrammarKind::JsonSchema => {
                let mut schema: Value = serde_json::from_str(text)
                    .map_err(|e| Failure::new(TkStatus::Input, format!("the schema is not JSON: {e}")))?;
                if let Some(fields) = schema.as_object_mut() {
                    // What is between tokens of JSON: a space, or a new line with its indent; a small model would go on with
                    // white space until its tokens are used up.
                    fields.entry("x-guidance").or_insert_with(|| serde_json::json!({"whitespace_pattern": SPACE}));
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarKind::Lark => TopLevelGrammar::from_lark(text.to_string()),
            GrammarKind::Regex => TopLevelGrammar::from_regex(text),
        };
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(failed(first_line(&error)));
        }
        // What cannot be enforced is refused, never ignored.
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(failed(first_line(warning)));
        }
        Ok(TkMatcher { matcher, env: self.env.clone() })
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

impl TkMatcher {
    /// Set the bit of every token that may come next; `words` has room for the vocabulary.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let mask = self.matcher.compute_mask_or_eos().map_err(failed)?;
        // The mask may be a word longer: it has a place behind the last token.
        let n = mask.as_slice().len().min(words.len());
        words.fill(0);
        words[..n].copy_from_slice(&mask.as_slice()[..n]);
        Ok(())
    }

    pub fn accept(&mut self, token: u32) -> Result<(), Failure> {
        self.matcher.consume_token(token).map_err(failed)
    }

    /// Bytes that came before the grammar was asked, as whole tokens of any split.
    pub fn accept_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let tokens = self.env.tokenize_bytes(bytes);
        self.matcher.consume_tokens(&tokens).map_err(failed)
    }

    pub fn stopped(&self) -> bool {
        self.matcher.is_stopped()
    }
}
