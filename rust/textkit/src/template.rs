//! A compiled template and one rendering of it.
//!
//! Compiling and rendering run on a helper thread with a stack of their own. Values may nest as
//! deeply as a template has steps to build them, and printing or freeing one takes stack per level,
//! so the stack is sized from the steps: a hostile template runs out of steps, never out of stack,
//! however small the caller's stack is. The pages are only touched when they are needed.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::{generation, json, python, strings, TkStatus};

/// Nested calls and blocks; a macro call counts several times.
const MAX_CALL_DEPTH: usize = 200;
/// Stack that every job gets, and what a step can add: about five steps make one level of nesting,
/// and the deepest reader of a level (printing) takes about 400 bytes.
const STACK_BYTES: usize = 16 << 20;
const STACK_BYTES_PER_STEP: u64 = 128;

const NAME: &str = "chat";

/// What went wrong, on its way to C.
#[derive(Debug)]
pub struct Failure {
    pub status: TkStatus,
    pub line: u32,
    pub text: String,
}

impl Failure {
    pub fn new(status: TkStatus, text: impl Into<String>) -> Failure {
        Failure { status, line: 0, text: text.into() }
    }
    pub fn at_line(mut self, line: u32) -> Failure {
        self.line = line;
        self
    }
    pub fn panicked() -> Failure {
        Failure::new(TkStatus::Panic, "internal error in the template library")
    }
}

#[derive(Clone, Copy)]
pub struct Limits {
    pub source_bytes: usize,
    pub output_bytes: usize,
    pub steps: u64,
}

/// Borrowed texts of one rendering; see `tk_render_args`.
pub struct Variables<'a> {
    pub messages: Option<&'a str>,
    pub tools: Option<&'a str>,
    pub extra: Option<&'a str>,
    pub bos_token: Option<&'a str>,
    pub eos_token: Option<&'a str>,
    pub now_unix: i64,
    pub add_generation_prompt: bool,
}

pub struct Template {
    env: Environment<'static>,
    limits: Limits,
}

/// The text of a `raise_exception`, carried as the cause of the library's error.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

/// Output that ends with an error when it is full.
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    full: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if part.len() > self.max - self.bytes.len() || self.bytes.try_reserve(part.len()).is_err() {
            self.full = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Run `job` on a thread with `stack_bytes` of stack and wait for it.
fn with_stack<T: Send>(
    stack_bytes: usize,
    job: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".into())
            .stack_size(stack_bytes)
            .spawn_scoped(scope, job)
            .map_err(|e| Failure::new(TkStatus::NoMemory, format!("no thread for a template: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(Failure::panicked()))
    })
}

fn raise_exception(state: &State, message: Value) -> Result<Value, Error> {
    let text = python::to_str(state, &message)?;
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

/// What transformers adds to Jinja, and what Python does differently from the library.
fn environment(limits: &Limits) -> Result<Environment<'static>, Failure> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| Failure::new(TkStatus::Panic, e.to_string()))?;
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(python::print);
    env.set_unknown_method_callback(strings::call);
    env.set_recursion_limit(MAX_CALL_DEPTH);
    env.set_fuel(Some(limits.steps));
    env.add_filter("tojson", json::tojson_filter);
    env.add_filter("trim", strings::trim_filter);
    env.add_filter("indent", strings::indent_filter);
    env.add_filter("string", python::string_filter);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.remove_global("debug"); // prints the whole state
    Ok(env)
}

impl Template {
    pub fn new(source: &str, limits: Limits) -> Result<Template, Failure> {
        if source.len() > limits.source_bytes {
            return Err(Failure::new(
                TkStatus::Limit,
                format!(
                    "the template has {} bytes, more than {}",
                    source.len(),
                    limits.source_bytes
                ),
            ));
        }
        let source = generation::rename_generation(source)?;
        let env = with_stack(STACK_BYTES, || {
            let mut env = environment(&limits)?;
            env.add_template_owned(NAME, source).map_err(|e| failure(&e, false))?;
            Ok(env)
        })?;
        Ok(Template { env, limits })
    }

    /// The whole text, or nothing.
    pub fn render(&self, variables: &Variables) -> Result<Vec<u8>, Failure> {
        let steps = self.limits.steps.saturating_mul(STACK_BYTES_PER_STEP);
        let stack = STACK_BYTES.saturating_add(usize::try_from(steps).unwrap_or(usize::MAX));
        with_stack(stack, || {
            let context = context(variables)?;
            let template = self.env.get_template(NAME).map_err(|e| failure(&e, false))?;
            let mut out =
                Bounded { bytes: Vec::new(), max: self.limits.output_bytes, full: false };
            let result = template.render_captured_to(context, &mut out).map(drop);
            match result {
                Ok(()) => Ok(out.bytes),
                Err(e) => Err(failure(&e, out.full)),
            }
        })
    }
}

fn read(text: &str, what: &str) -> Result<Value, Failure> {
    json::parse(text).map_err(|e| Failure::new(TkStatus::Input, format!("{what}: {e}")))
}

/// The variables, in transformers' order of precedence: what the caller gave by name wins.
fn context(v: &Variables) -> Result<Value, Failure> {
    let none = Value::from(());
    let mut pairs: Vec<(Value, Value)> = vec![
        (Value::from("tools"), none.clone()),
        (Value::from("documents"), none),
    ];
    if let Some(extra) = v.extra {
        let extra = read(extra, "template arguments")?;
        let keys = match extra.kind() {
            minijinja::value::ValueKind::Map => extra.try_iter(),
            _ => return Err(Failure::new(TkStatus::Input, "template arguments must be an object")),
        };
        for key in keys.map_err(|e| failure(&e, false))? {
            let value = extra.get_item(&key).map_err(|e| failure(&e, false))?;
            pairs.push((key, value));
        }
    }
    let messages = match v.messages {
        Some(text) => read(text, "messages")?,
        None => return Err(Failure::new(TkStatus::Input, "no messages given")),
    };
    pairs.push((Value::from("messages"), messages));
    if let Some(tools) = v.tools {
        pairs.push((Value::from("tools"), read(tools, "tools")?));
    }
    pairs.push((Value::from("add_generation_prompt"), Value::from(v.add_generation_prompt)));
    for (name, token) in [("bos_token", v.bos_token), ("eos_token", v.eos_token)] {
        if let Some(token) = token {
            pairs.push((Value::from(name), Value::from(token)));
        }
    }
    let now = v.now_unix;
    pairs.push((
        Value::from("strftime_now"),
        Value::from_function(move |format: Arc<str>, _kwargs: Kwargs| python::strftime(now, &format)),
    ));
    Ok(Value::from_pairs(pairs))
}

/// Sort one of the library's errors, with the line where it says it happened.
fn failure(error: &Error, output_full: bool) -> Failure {
    let line = u32::try_from(error.line().unwrap_or(0)).unwrap_or(0);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut deepest = error;
    while let Some(e) = cause {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            return Failure::new(TkStatus::Raised, raised.0.clone()).at_line(line);
        }
        if let Some(inner) = e.downcast_ref::<Error>() {
            deepest = inner;
        }
        cause = e.source();
    }
    let (status, text) = match deepest.kind() {
        _ if output_full => (TkStatus::Limit, "the output is too long".to_owned()),
        ErrorKind::OutOfFuel => (TkStatus::Limit, "the template takes too many steps".to_owned()),
        ErrorKind::SyntaxError | ErrorKind::BadEscape => (TkStatus::Syntax, describe(deepest)),
        ErrorKind::InvalidOperation
            if deepest.detail().is_some_and(|d| d.contains("recursion limit")) =>
        {
            (TkStatus::Limit, "the template nests too deeply".to_owned())
        }
        _ => (TkStatus::Render, describe(deepest)),
    };
    Failure::new(status, text).at_line(line)
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
