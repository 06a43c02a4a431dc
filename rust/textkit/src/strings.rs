//! Python's methods of strings, lists and dicts: what the library's compatibility layer lacks, or
//! does by other rules (white space, keyword arguments). The rest is passed on to it.

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::python::to_str;

/// A width that a template may pad to, as a guard against one call that fills the memory.
const MAX_PAD: usize = 4096;

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// Python's `str.isspace` for one character.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Where Python's `str.splitlines` breaks.
fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The callback for a method the library does not know itself. Each call pays for reading its value,
/// and for the parts it will make before they are made.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let steps = match (value.as_str(), method) {
        (Some(s), "split" | "rsplit" | "splitlines" | "upper" | "lower" | "title" | "capitalize") => {
            s.len() / 16
        }
        (Some(s), _) => s.len() / 32,
        (None, _) => value.len().unwrap_or(0),
    };
    let pieces = match (value.as_str(), method) {
        (Some(s), "splitlines") => s.chars().filter(|c| is_line_break(*c)).count(),
        (Some(s), "split" | "rsplit") => match args.first().and_then(|sep| sep.as_str()) {
            Some(sep) => s.matches(sep).count(),
            None => s.chars().filter(|c| is_space(*c)).count(),
        },
        _ => 0,
    };
    state.consume_fuel((steps + pieces) as u64)?;
    let known = match value.kind() {
        ValueKind::String => string_method(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(state, value, method, args)?,
        ValueKind::Map => dict_method(value, method, args)?,
        _ => None,
    };
    match known {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The filter `trim(chars)`: Jinja's calls `str.strip`.
pub fn trim_filter(state: &State, value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = to_str(state, value)?;
    Ok(strip(&text, chars, true, true).to_owned())
}

/// The filter `indent(width=4, first=False, blank=False)`; `width` may be the text itself.
pub fn indent_filter(
    state: &State,
    value: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    type Optional = Option<Value>;
    let args = args.into_values();
    let (width, first, blank, kwargs): (Optional, Optional, Optional, Kwargs) = from_args(&args)?;
    let width = named(width, &kwargs, "width")?;
    let first = named(first, &kwargs, "first")?.is_some_and(|v| v.is_true());
    let blank = named(blank, &kwargs, "blank")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let indent = match width {
        None => " ".repeat(4),
        Some(v) => match v.as_str() {
            Some(text) => text.to_owned(),
            None => match v.as_i64() {
                Some(n) if n <= MAX_PAD as i64 => " ".repeat(usize::try_from(n).unwrap_or(0)),
                _ => return Err(invalid(format!("indent: width must be at most {MAX_PAD}"))),
            },
        },
    };
    let text = to_str(state, value)?;
    let mut out = String::new();
    for (i, line) in lines(&format!("{text}\n"), false).into_iter().enumerate() {
        state.consume_fuel((line.len() + indent.len()) as u64 / 64 + 1)?;
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 && (blank || !line.is_empty())) || (i == 0 && first) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// An argument by position, or else by name.
pub fn named(
    positional: Option<Value>,
    kwargs: &Kwargs,
    name: &str,
) -> Result<Option<Value>, Error> {
    match positional {
        Some(value) => Ok(Some(value)),
        None => kwargs.get::<Option<Value>>(name),
    }
}

fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| match chars {
        Some(set) => set.contains(c),
        None => is_space(c),
    };
    let s = if left { s.trim_start_matches(drop) } else { s };
    if right { s.trim_end_matches(drop) } else { s }
}

fn strings<'a>(parts: impl Iterator<Item = &'a str>) -> Value {
    parts.map(Value::from).collect()
}

/// `sep` and `maxsplit` of split and rsplit, by position or by name. None: split at white space, or
/// without a limit.
fn split_args(args: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (sep, max, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = match sep {
        Some(sep) => Some(sep),
        None => kwargs.get::<Option<Value>>("sep")?,
    };
    let max = match max {
        Some(max) => Some(max),
        None => kwargs.get::<Option<i64>>("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let sep = match sep {
        Some(sep) if !sep.is_none() => {
            let text = sep.as_str().ok_or_else(|| invalid("split: the separator must be a string"))?;
            if text.is_empty() {
                return Err(invalid("split: empty separator"));
            }
            Some(text.to_owned())
        }
        _ => None,
    };
    Ok((sep, max.and_then(|max| usize::try_from(max).ok())))
}

fn split(s: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match split_args(args)? {
        (Some(sep), None) => strings(s.split(sep.as_str())),
        (Some(sep), Some(max)) => strings(s.splitn(max.saturating_add(1), sep.as_str())),
        (None, max) => {
            let mut parts = Vec::new();
            let mut rest = s.trim_start_matches(is_space);
            while !rest.is_empty() {
                if max.is_some_and(|max| parts.len() >= max) {
                    // the last part keeps its inner space; Python strips its end
                    parts.push(rest.trim_end_matches(is_space));
                    break;
                }
                let end = rest.find(is_space).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            strings(parts.into_iter())
        }
    })
}

fn rsplit(s: &str, args: &[Value]) -> Result<Value, Error> {
    let mut parts = Vec::new();
    match split_args(args)? {
        (Some(sep), max) => {
            parts.extend(s.rsplitn(max.map_or(usize::MAX, |max| max.saturating_add(1)), sep.as_str()));
        }
        (None, max) => {
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                if max.is_some_and(|max| parts.len() >= max) {
                    parts.push(rest.trim_start_matches(is_space));
                    break;
                }
                let start = rest
                    .char_indices()
                    .rev()
                    .find(|(_, c)| is_space(*c))
                    .map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
        }
    }
    Ok(strings(parts.into_iter().rev()))
}

/// Python's `str.splitlines`.
fn lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let (end, next) = match rest.char_indices().find(|(_, c)| is_line_break(*c)) {
            Some((at, '\r')) if rest[at + 1..].starts_with('\n') => (at, at + 2),
            Some((at, c)) => (at, at + c.len_utf8()),
            None => (rest.len(), rest.len()),
        };
        lines.push(&rest[..if keep_ends { next } else { end }]);
        rest = &rest[next..];
    }
    lines
}

/// Python's `str.title`: a letter behind anything that is not a letter is upper case, others lower.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}

fn partition(s: &str, found: Option<usize>, sep: &str, last: bool) -> Value {
    let parts = match found {
        Some(at) => [&s[..at], sep, &s[at + sep.len()..]],
        None if last => ["", "", s],
        None => [s, "", ""],
    };
    Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
}

fn pad(s: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_PAD {
        return Err(invalid(format!("{method}: width {width} is over {MAX_PAD}")));
    }
    let missing = width.saturating_sub(s.chars().count());
    let fill = if method == "zfill" { '0' } else { fill.unwrap_or(' ') };
    // Python gives the odd one to the left when the width is odd
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign_len = usize::from(method == "zfill" && s.starts_with(['+', '-']));
    let mut out = String::from(&s[..sign_len]);
    out.extend(std::iter::repeat_n(fill, left));
    out.push_str(&s[sign_len..]);
    out.extend(std::iter::repeat_n(fill, missing - left));
    Ok(out)
}

/// Refuse a width in a format text that would fill the memory: no run of more than four digits.
fn check_format(format: &str) -> Result<(), Error> {
    let longest = format.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
    if longest.unwrap_or(0) > 4 {
        return Err(invalid("format: a width or precision is too large"));
    }
    Ok(())
}

fn string_method(
    state: &State,
    s: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let chars = || -> Result<Option<&str>, Error> {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(chars)
    };
    Ok(Some(match method {
        "strip" => Value::from(strip(s, chars()?, true, true)),
        "lstrip" => Value::from(strip(s, chars()?, true, false)),
        "rstrip" => Value::from(strip(s, chars()?, false, true)),
        "split" => split(s, args)?,
        "rsplit" => rsplit(s, args)?,
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = match keep {
                Some(keep) => Some(keep),
                None => kwargs.get::<Option<bool>>("keepends")?,
            };
            kwargs.assert_all_used()?;
            strings(lines(s, keep.unwrap_or(false)).into_iter())
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(s))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(s.to_lowercase())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(invalid("partition: empty separator"));
            }
            let last = method == "rpartition";
            let found = if last { s.rfind(sep) } else { s.find(sep) };
            partition(s, found, sep, last)
        }
        "index" | "rindex" => {
            let (sub,): (&str,) = from_args(args)?;
            let found = if method == "index" { s.find(sub) } else { s.rfind(sub) };
            let at = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(s[..at].chars().count())
        }
        "ljust" | "rjust" | "center" | "zfill" => Value::from(pad(s, method, args)?),
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit()))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(is_space))
        }
        "format" => {
            check_format(s)?;
            state.consume_fuel(s.len() as u64)?;
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

fn list_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (i, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if item? == *wanted {
                    return Ok(Some(Value::from(i)));
                }
            }
            Err(invalid("value is not in list"))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            Err(invalid(format!("templates cannot change a list ({method})")))
        }
        _ => Ok(None),
    }
}

fn dict_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "pop" | "popitem" | "update" | "setdefault" | "clear" => {
            Err(invalid(format!("templates cannot change a dict ({method})")))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(x: &str) -> Value {
        Value::from(x)
    }

    #[test]
    fn split_follows_python() {
        assert_eq!(split(" a  b c ", &[]).unwrap().to_string(), "['a', 'b', 'c']");
        assert_eq!(split("a,b,c", &[v(","), Value::from(1)]).unwrap().to_string(), "['a', 'b,c']");
        assert_eq!(rsplit("a,b,c", &[v(","), Value::from(1)]).unwrap().to_string(), "['a,b', 'c']");
        assert_eq!(lines("a\r\nb\u{2028}c\n", false), ["a", "b", "c"]);
        assert_eq!(lines("a\r\n\nb", true), ["a\r\n", "\n", "b"]);
        assert!(split("a", &[v("")]).is_err());
    }

    #[test]
    fn widths_are_bounded() {
        assert_eq!(pad("-7", "zfill", &[Value::from(4)]).unwrap(), "-007");
        assert_eq!(pad("ab", "center", &[Value::from(5)]).unwrap(), "  ab ");
        assert!(pad("x", "ljust", &[Value::from(1i64 << 40)]).is_err());
        assert!(check_format("{:99999}").is_err());
    }
}
