//! `{% generation %}` and a bound on the length of one tag.
//!
//! transformers adds the statement `{% generation %} … {% endgeneration %}`: its body is rendered as
//! it stands, in a scope of its own. The template library has no such statement but has the same
//! thing under another name, `{% with %} … {% endwith %}`, so the two names are exchanged before
//! compiling. Lines keep their numbers.
//!
//! The scan follows the lexer's own rules (comments, raw blocks, strings inside tags), so that a
//! word in a string or in plain text is never touched. It also bounds what the compiler recurses
//! over without a limit of its own: an expression (by the length of its tag, [`MAX_TAG_BYTES`]) and a
//! chain of `elif` ([`MAX_ELIFS`]).

use crate::template::Failure;
use crate::TkStatus;

/// Bytes of one tag outside of its strings; the most in the wild is about 1.5 KB.
const MAX_TAG_BYTES: usize = 8 << 10;
/// In the whole template; the most in the wild is about 40.
const MAX_ELIFS: usize = 2000;

/// Find the end of the tag that starts at `start` (its first two bytes are `{{`, `{%`): the index
/// just behind the closing marker, and how many of its bytes stand in strings. `None`: no end, which
/// the compiler reports better than we could.
fn tag_end(source: &[u8], start: usize, close: &[u8; 2]) -> Option<(usize, usize)> {
    let mut at = start + 2;
    let mut in_strings = 0;
    let mut depth = 0usize; // of (), [] and {}: `}}` may close a dict first
    while at < source.len() {
        match source[at] {
            quote @ (b'"' | b'\'') => {
                let opened = at;
                at += 1;
                while at < source.len() && source[at] != quote {
                    at += if source[at] == b'\\' { 2 } else { 1 };
                }
                in_strings += at - opened;
            }
            _ if depth == 0 && source[at..].starts_with(close) => return Some((at + 2, in_strings)),
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The word of a block tag `{%- word … %}` and where it starts.
fn block_word(source: &str, start: usize, end: usize) -> (usize, &str) {
    let bytes = source.as_bytes();
    let mut at = start + 2;
    if at < end && matches!(bytes[at], b'-' | b'+') {
        at += 1;
    }
    while at < end && bytes[at].is_ascii_whitespace() {
        at += 1;
    }
    let mut stop = at;
    while stop < end && (bytes[stop].is_ascii_alphanumeric() || bytes[stop] == b'_') {
        stop += 1;
    }
    (at, &source[at..stop])
}

/// Where the raw block whose body starts at `from` ends: behind its `{% endraw %}`.
fn raw_end(source: &str, mut from: usize) -> Option<usize> {
    while let Some(found) = source[from..].find("{%") {
        let start = from + found;
        let end = start + source[start..].find("%}")? + 2;
        if block_word(source, start, end).1 == "endraw" {
            return Some(end);
        }
        from = start + 2;
    }
    None
}

fn line_of(source: &str, at: usize) -> u32 {
    let lines = source.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
    u32::try_from(lines + 1).unwrap_or(u32::MAX)
}

/// The template with generation tags renamed.
pub fn rename_generation(source: &str) -> Result<String, Failure> {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let mut n_elifs = 0;
    let mut copied = 0; // source[..copied] is in `out`
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let end = match bytes.get(start + 1) {
            Some(b'#') => source[start..].find("#}").map(|n| (start + n + 2, 0)),
            Some(b'{') => tag_end(bytes, start, b"}}"),
            Some(b'%') => tag_end(bytes, start, b"%}"),
            _ => {
                at = start + 1;
                continue;
            }
        };
        let Some((end, in_strings)) = end else { break };
        at = end;
        if bytes[start + 1] == b'#' {
            continue;
        }
        let n = end - start - in_strings;
        if n > MAX_TAG_BYTES {
            let text = format!("one tag has {n} bytes outside of strings, more than {MAX_TAG_BYTES}");
            return Err(Failure::new(TkStatus::Limit, text).at_line(line_of(source, start)));
        }
        if bytes[start + 1] != b'%' {
            continue;
        }
        let (word_at, word) = block_word(source, start, end);
        let other = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            "elif" if n_elifs == MAX_ELIFS => {
                return Err(Failure::new(TkStatus::Limit, format!("more than {MAX_ELIFS} elif"))
                    .at_line(line_of(source, start)));
            }
            "elif" => {
                n_elifs += 1;
                continue;
            }
            "raw" => {
                let Some(end) = raw_end(source, end) else { break };
                at = end;
                continue;
            }
            _ => continue,
        };
        out.push_str(&source[copied..word_at]);
        out.push_str(other);
        copied = word_at + word.len();
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::rename_generation;

    fn renamed(source: &str) -> String {
        rename_generation(source).ok().unwrap()
    }

    #[test]
    fn tags_are_renamed_and_nothing_else() {
        assert_eq!(
            renamed("a{%- generation -%}b{% endgeneration %}"),
            "a{%- with -%}b{% endwith %}"
        );
        for same in [
            "{{ '{% generation %}' }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ {'a': {'b': 1}} }} generation",
            "{{ 'it\\'s {% generation %}' }}",
            "{% if generation %}{% endif %}",
            "{ {",
            "{% generation",
        ] {
            assert_eq!(renamed(same), same);
        }
    }

    #[test]
    fn a_giant_tag_is_refused_with_its_line() {
        let source = format!("\n\n{{{{ {} }}}}", "a.".repeat(40_000));
        let failure = rename_generation(&source).err().unwrap();
        assert_eq!(failure.line, 3);
        let source = format!("{{{{ '{}' }}}}", "a.".repeat(40_000));
        assert_eq!(renamed(&source), source);
    }
}
