//! JSON in (to template values, key order kept) and out (as Python's `json.dumps` writes it).

use std::fmt;

use minijinja::value::{from_args, Kwargs, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::python;
use crate::strings::named;

/// Python gives up at about 1,000; the reader below stops at 128.
const MAX_DUMP_DEPTH: usize = 256;

/// Read one JSON text. Depth is bounded by the reader (128).
pub fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let mut de = serde_json::Deserializer::from_str(text);
    let value = AnyValue.deserialize(&mut de)?;
    de.end()?;
    Ok(value)
}

/// Builds template values straight from the reader, so that no second tree is made.
struct AnyValue;

impl<'de> DeserializeSeed<'de> for AnyValue {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Value, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(AnyValue)? {
            items.push(item);
        }
        Ok(Value::from(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            pairs.push((Value::from(key), map.next_value_seed(AnyValue)?));
        }
        Ok(Value::from_pairs(pairs)) // of a key given twice the last value counts, as in Python
    }
}

/// How `json.dumps` was asked to write.
struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)` that
/// transformers installs: `json.dumps` without HTML escaping.
pub fn tojson_filter(
    state: &State,
    value: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    type Optional = Option<Value>;
    let args = args.into_values();
    let (ensure_ascii, indent, separators, sort_keys, kwargs): (
        Optional,
        Optional,
        Optional,
        Optional,
        Kwargs,
    ) = from_args(&args)?;
    let ensure_ascii = named(ensure_ascii, &kwargs, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let sort_keys = named(sort_keys, &kwargs, "sort_keys")?.is_some_and(|v| v.is_true());
    let indent = match named(indent, &kwargs, "indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) if v.kind() == ValueKind::String => v.as_str().map(str::to_owned),
        Some(v) if v.kind() == ValueKind::Bool => Some(" ".repeat(usize::from(v.is_true()))),
        Some(v) => match v.as_i64() {
            Some(n) if n <= 64 => Some(" ".repeat(usize::try_from(n).unwrap_or(0))),
            _ => return Err(invalid("tojson: indent must be a string or a number up to 64")),
        },
    };
    let (item_separator, key_separator) = match named(separators, &kwargs, "separators")? {
        Some(v) if !v.is_none() => {
            let pair: Vec<Value> = v.try_iter()?.take(3).collect();
            match pair.as_slice() {
                [item, key] => (item.to_string(), key.to_string()),
                _ => return Err(invalid("tojson: separators must be a pair")),
            }
        }
        _ if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    kwargs.assert_all_used()?;
    let style = Style { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    let mut writer = Writer { state, style, out: String::new(), depth: 0, paid: 0 };
    writer.value(value)?;
    writer.pay()?;
    Ok(Value::from(writer.out))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    style: Style,
    out: String,
    depth: usize,
    paid: usize, // bytes of `out` that steps were taken for
}

impl Writer<'_, '_, '_> {
    /// Steps for what was written since the last call: a shared value can be written many times.
    fn pay(&mut self) -> Result<(), Error> {
        let steps = (self.out.len() - self.paid) / 16 + 1;
        self.paid = self.out.len();
        self.state.consume_fuel(steps as u64)
    }

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match python::float_of(value) {
                Some(x) => self.out.push_str(&json_float(x)),
                None => self.out.push_str(&value.to_string()),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DUMP_DEPTH {
            return Err(invalid("tojson: value is nested too deeply"));
        }
        self.out.push(bracket);
        self.pay()
    }

    fn before_item(&mut self, first: bool) {
        if !first {
            self.out.push_str(&self.style.item_separator);
        }
        self.new_line();
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.open('[')?;
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.before_item(empty);
            empty = false;
            self.value(&item?)?;
            self.pay()?;
        }
        self.close(']', empty);
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        let pairs = value
            .as_object()
            .filter(|object| object.repr() == ObjectRepr::Map)
            .and_then(|object| object.try_iter_pairs())
            .ok_or_else(|| invalid("tojson: object is not JSON serializable"))?;
        let mut pairs: Vec<(Value, Value)> = pairs.collect();
        if self.style.sort_keys {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.open('{')?;
        let empty = pairs.is_empty();
        for (i, (key, item)) in pairs.iter().enumerate() {
            self.before_item(i == 0);
            self.key(key)?;
            self.out.push_str(&self.style.key_separator);
            self.value(item)?;
            self.pay()?;
        }
        self.close('}', empty);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key)?;
                self.out.push('"');
            }
            kind => return Err(invalid(format!("tojson: a key cannot be of type {kind}"))),
        }
        Ok(())
    }

    fn string(&mut self, s: &str) {
        use fmt::Write;
        let out = &mut self.out;
        out.push('"');
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}"); // a String never fails
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_float(x: f64) -> String {
    if x.is_nan() {
        "NaN".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        python::float_repr(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_order_and_last_duplicate_win() {
        let v = parse(r#"{"b":1,"a":2,"b":3}"#).unwrap();
        assert_eq!(v.to_string(), "{'b': 3, 'a': 2}");
    }

    #[test]
    fn depth_is_bounded() {
        assert!(parse(&("[".repeat(100_000) + &"]".repeat(100_000))).is_err());
    }
}
