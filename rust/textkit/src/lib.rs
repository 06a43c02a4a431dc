//! The C face of textkit: argument checks, panic border, errors. See `include/textkit.h`, which is
//! the contract; each `#[repr(C)]` type here mirrors one of its types.

mod generation;
mod grammar;
mod json;
mod python;
mod strings;
mod template;

use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

use grammar::{GrammarKind, TkMatcher, Vocab};
use template::{Failure, Limits, Template, Variables};

const ERROR_TEXT_BYTES: usize = 480;

#[repr(C)]
pub struct TkError {
    line: u32,
    text: [u8; ERROR_TEXT_BYTES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TkStr {
    data: *const c_char,
    len: usize,
}

#[repr(C)]
pub struct TkLimits {
    max_source_bytes: usize,
    max_output_bytes: usize,
    max_steps: u64,
}

#[repr(C)]
pub struct TkRenderArgs {
    messages: TkStr,
    tools: TkStr,
    extra: TkStr,
    bos_token: TkStr,
    eos_token: TkStr,
    now_unix: i64,
    add_generation_prompt: bool,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TkStatus {
    Ok = 0,
    Syntax = 1,
    Render = 2,
    Raised = 3,
    Limit = 4,
    Input = 5,
    NoMemory = 6,
    Panic = 7,
}

/// Write a failure for C: NUL-terminated, cut at a whole character.
///
/// # Safety
/// `error` is NULL or points to a writable `TkError`.
unsafe fn report(error: *mut TkError, failure: &Failure) -> TkStatus {
    if let Some(error) = error.as_mut() {
        error.line = failure.line;
        let mut n = failure.text.len().min(ERROR_TEXT_BYTES - 1);
        while !failure.text.is_char_boundary(n) {
            n -= 1;
        }
        error.text[..n].copy_from_slice(&failure.text.as_bytes()[..n]);
        error.text[n] = 0;
    }
    failure.status
}

/// # Safety
/// `s.data` is NULL or points to `s.len` readable bytes that live for `'a`.
unsafe fn text<'a>(s: TkStr, what: &str) -> Result<Option<&'a str>, Failure> {
    if s.data.is_null() {
        return Ok(None);
    }
    let bytes = std::slice::from_raw_parts(s.data.cast::<u8>(), s.len);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(e) => Err(Failure::new(
            TkStatus::Input,
            format!("{what} is not UTF-8 at byte {}", e.valid_up_to()),
        )),
    }
}

/// Run `body`, turning a panic into an error that C can read.
unsafe fn guarded(error: *mut TkError, body: impl FnOnce() -> Result<(), Failure>) -> TkStatus {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => TkStatus::Ok,
        Ok(Err(failure)) => report(error, &failure),
        Err(_) => report(error, &Failure::panicked()),
    }
}

/// # Safety
/// As `textkit.h` says: borrowed strings are readable, `limits`, `out` and `error` valid or NULL.
#[no_mangle]
pub unsafe extern "C" fn tk_template_new(
    source: TkStr,
    limits: *const TkLimits,
    out: *mut *mut Template,
    error: *mut TkError,
) -> TkStatus {
    if out.is_null() {
        return report(error, &Failure::new(TkStatus::Input, "no place for the result"));
    }
    *out = std::ptr::null_mut();
    guarded(error, || {
        let limits = limits
            .as_ref()
            .ok_or_else(|| Failure::new(TkStatus::Input, "no limits given"))?;
        let source = text(source, "template")?
            .ok_or_else(|| Failure::new(TkStatus::Input, "no template given"))?;
        let template = Template::new(
            source,
            Limits {
                source_bytes: limits.max_source_bytes,
                output_bytes: limits.max_output_bytes,
                steps: limits.max_steps,
            },
        )?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// `t` is NULL or came from `tk_template_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn tk_template_free(t: *mut Template) {
    if !t.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(t))));
    }
}

/// # Safety
/// As `textkit.h` says: `t` is alive, borrowed strings are readable, `sink` does not unwind.
#[no_mangle]
pub unsafe extern "C" fn tk_template_render(
    t: *const Template,
    args: *const TkRenderArgs,
    sink: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    arg: *mut c_void,
    error: *mut TkError,
) -> TkStatus {
    guarded(error, || {
        let (Some(template), Some(args), Some(sink)) = (t.as_ref(), args.as_ref(), sink) else {
            return Err(Failure::new(TkStatus::Input, "template, arguments or sink missing"));
        };
        let variables = Variables {
            messages: text(args.messages, "messages")?,
            tools: text(args.tools, "tools")?,
            extra: text(args.extra, "template arguments")?,
            bos_token: text(args.bos_token, "bos_token")?,
            eos_token: text(args.eos_token, "eos_token")?,
            now_unix: args.now_unix,
            add_generation_prompt: args.add_generation_prompt,
        };
        let output = template.render(&variables)?;
        sink(arg, output.as_ptr().cast(), output.len());
        Ok(())
    })
}

/// # Safety
/// As `textkit.h` says: `tokens` has `n` readable strings, `out` and `error` are valid or NULL.
#[no_mangle]
pub unsafe extern "C" fn tk_vocab_new(
    tokens: *const TkStr,
    n: usize,
    eos: u32,
    out: *mut *mut Vocab,
    error: *mut TkError,
) -> TkStatus {
    if out.is_null() || tokens.is_null() {
        return report(error, &Failure::new(TkStatus::Input, "no place for the result"));
    }
    *out = std::ptr::null_mut();
    guarded(error, || {
        let tokens: Vec<Option<&[u8]>> = std::slice::from_raw_parts(tokens, n)
            .iter()
            .map(|t| (!t.data.is_null()).then(|| std::slice::from_raw_parts(t.data.cast::<u8>(), t.len)))
            .collect();
        *out = Box::into_raw(Box::new(Vocab::new(&tokens, eos)?));
        Ok(())
    })
}

/// # Safety
/// `v` is NULL or came from `tk_vocab_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn tk_vocab_free(v: *mut Vocab) {
    if !v.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(v))));
    }
}

/// # Safety
/// As `textkit.h` says: `v` is alive, `grammar` readable, `out` and `error` valid or NULL.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_new(
    v: *const Vocab,
    kind: GrammarKind,
    grammar: TkStr,
    out: *mut *mut TkMatcher,
    error: *mut TkError,
) -> TkStatus {
    guarded(error, || {
        let (Some(v), false) = (v.as_ref(), out.is_null()) else {
            return Err(Failure::new(TkStatus::Input, "vocabulary or place for the result missing"));
        };
        *out = std::ptr::null_mut();
        let grammar = text(grammar, "grammar")?
            .ok_or_else(|| Failure::new(TkStatus::Input, "no grammar given"))?;
        *out = Box::into_raw(Box::new(v.matcher(kind, grammar)?));
        Ok(())
    })
}

/// # Safety
/// `m` is NULL or came from `tk_matcher_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_free(m: *mut TkMatcher) {
    if !m.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(m))));
    }
}

/// # Safety
/// `m` is alive; `words` has room for `n_words`.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_mask(
    m: *mut TkMatcher,
    words: *mut u32,
    n_words: usize,
    error: *mut TkError,
) -> TkStatus {
    guarded(error, || match (m.as_mut(), words.is_null()) {
        (Some(m), false) => m.mask(std::slice::from_raw_parts_mut(words, n_words)),
        _ => Err(Failure::new(TkStatus::Input, "matcher or mask missing")),
    })
}

/// # Safety
/// `m` is alive.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_accept(m: *mut TkMatcher, token: u32, error: *mut TkError) -> TkStatus {
    guarded(error, || match m.as_mut() {
        Some(m) => m.accept(token),
        None => Err(Failure::new(TkStatus::Input, "no matcher")),
    })
}

/// # Safety
/// `m` is alive, `bytes` readable.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_accept_bytes(m: *mut TkMatcher, bytes: TkStr, error: *mut TkError) -> TkStatus {
    guarded(error, || match (m.as_mut(), bytes.data.is_null()) {
        (Some(m), false) => m.accept_bytes(std::slice::from_raw_parts(bytes.data.cast::<u8>(), bytes.len)),
        _ => Err(Failure::new(TkStatus::Input, "matcher or bytes missing")),
    })
}

/// # Safety
/// `m` is NULL or alive.
#[no_mangle]
pub unsafe extern "C" fn tk_matcher_stopped(m: *const TkMatcher) -> bool {
    m.as_ref().is_none_or(TkMatcher::stopped)
}
