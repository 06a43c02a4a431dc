//! Where Python's idea of a value differs from the template library's: printing, tests, dates.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// The value as a float, if it is one (an integer is not).
pub fn float_of(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// Python's `repr` of a finite float: the shortest digits that read back, with an exponent when it
/// is below -4 or above 15.
pub fn float_repr(x: f64) -> String {
    if x == 0.0 {
        return if x.is_sign_negative() { "-0.0" } else { "0.0" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let mut plain = x.to_string();
        if !plain.contains('.') {
            plain.push_str(".0");
        }
        plain
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

/// Python's `str` of a float.
fn float_str(x: f64) -> String {
    if x.is_nan() {
        "nan".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else {
        float_repr(x)
    }
}

/// Python's `str` of a value.
pub fn to_str(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number => match float_of(value) {
            Some(x) => Ok(float_str(x)),
            None => Ok(value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let mut repr = Repr { state, out: String::new(), depth: 0, paid: 0 };
            repr.value(value)?;
            Ok(repr.out)
        }
        _ => Ok(value.to_string()),
    }
}

/// Python's `str.isprintable` for one character: not a control, format, private, unassigned or
/// separator one. The standard library asks the same question when it escapes a text for debugging
/// (a letter goes first, since a combining mark at the start is escaped for another reason).
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut text = [b'a', 0, 0, 0, 0];
    let len = 1 + c.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..len]).is_ok_and(|s| s.escape_debug().count() == 2)
}

/// Python's `repr` of a string.
fn string_repr(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match c as u32 {
                code @ 0..=0xff => format!("\\x{code:02x}"),
                code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// Writes Python's `repr`. Steps are taken for what is written, and depth is bounded, since one
/// value may stand in many places of another.
struct Repr<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    depth: usize,
    paid: usize,
}

impl Repr<'_, '_, '_> {
    const MAX_DEPTH: usize = 256;

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Number => self.out.push_str(&to_str(self.state, value)?),
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::String => string_repr(&mut self.out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            _ => self.out.push_str(&format!("{value:?}")),
        }
        Ok(())
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > Self::MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
        }
        Ok(())
    }

    /// Between two items.
    fn comma(&mut self, first: bool) -> Result<(), Error> {
        if !first {
            self.out.push_str(", ");
        }
        let steps = (self.out.len() - self.paid) / 16 + 1;
        self.paid = self.out.len();
        self.state.consume_fuel(steps as u64)
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.enter()?;
        let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
        self.out.push(open);
        let mut n = 0;
        for item in value.try_iter()?.checked() {
            self.comma(n == 0)?;
            self.value(&item?)?;
            n += 1;
        }
        if n == 1 && value.is_tuple() {
            self.out.push(',');
        }
        self.out.push(close);
        self.depth -= 1;
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        let Some(pairs) = value.as_object().and_then(|object| object.try_iter_pairs()) else {
            self.out.push_str(&value.to_string());
            return Ok(());
        };
        self.enter()?;
        self.out.push('{');
        for (i, (key, item)) in pairs.enumerate() {
            self.comma(i == 0)?;
            self.value(&key)?;
            self.out.push_str(": ");
            self.value(&item)?;
        }
        self.out.push('}');
        self.depth -= 1;
        Ok(())
    }
}

/// Writes the value of `{{ … }}`.
pub fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(s) => out.write_str(s),
        None => out.write_str(&to_str(state, value)?),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "output is full"))
}

/// The filter `string`.
pub fn string_filter(state: &State, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => to_str(state, value).map(Value::from),
    }
}

/// `x is iterable`: none is not, though the library lets it be iterated.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `x is sequence`: Jinja asks for a length and an index operator, which strings, maps and undefined
/// have, too.
pub fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    ) || (value.kind() == ValueKind::Iterable && value.len().is_some())
}

/// `format` of `strftime_now`, as Python's `datetime.now().strftime` understands it: the C library's
/// conversions, with microseconds 0 and no zone.
pub fn strftime(now_unix: i64, format: &str) -> Result<String, Error> {
    const MAX_FORMAT_BYTES: usize = 256;
    if format.len() > MAX_FORMAT_BYTES || format.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format"));
    }
    let mut c_format = Vec::with_capacity(format.len() + 1);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.clone().next() } else { None }) {
            ('%', Some('f')) => c_format.extend_from_slice(b"000000"),
            ('%', Some('z' | 'Z')) => {}
            ('%', Some(next)) => {
                c_format.push(b'%');
                c_format.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => {
                c_format.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        }
        chars.next();
    }
    if c_format.is_empty() {
        return Ok(String::new());
    }
    c_format.push(0);
    let mut out = vec![0u8; 16 * MAX_FORMAT_BYTES];
    let n = unsafe {
        let time: libc::time_t = now_unix;
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&time, &mut parts).is_null() {
            return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: bad time"));
        }
        libc::strftime(out.as_mut_ptr().cast(), out.len(), c_format.as_ptr().cast(), &parts)
    };
    out.truncate(n);
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (x, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ] {
            assert_eq!(float_repr(x), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_in_python() {
        for (s, quoted) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\n\u{0}\u{a0}é\u{301}\u{200b}\u{e000}🌍", "'\\n\\x00\\xa0é\u{301}\\u200b\\ue000🌍'"),
        ] {
            let mut out = String::new();
            string_repr(&mut out, s);
            assert_eq!(out, quoted);
        }
    }

    #[test]
    fn dates_follow_the_c_library() {
        assert_eq!(strftime(0, "%Y %% %f%Z").unwrap().len(), "1970 % 000000".len());
        assert!(strftime(0, &"%c".repeat(200)).is_err());
    }
}
