//! `$(VAR)` references in commands, arguments, environment values and subPathExpr.

/// What a text refers to made it longer than it may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Replaces every `$(NAME)` that `lookup` knows. `$$` stands for one dollar sign, so `$$(NAME)` stays a literal
/// `$(NAME)`; a reference that `lookup` does not know, and one that is never closed, are left as they were written.
/// Values may refer to values that refer to values, so what comes out is bounded: no more than `most` bytes are made.
pub fn expand<V: AsRef<[u8]>>(
    input: &str,
    most: usize,
    mut lookup: impl FnMut(&str) -> Option<V>,
) -> Result<Vec<u8>, TooLong> {
    let mut out = Bounded { bytes: Vec::with_capacity(input.len().min(most)), most };
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push(&rest.as_bytes()[..at])?;
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push(b"$")?;
            rest = tail;
            continue;
        }
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let Some((name, tail)) = reference else {
            out.push(b"$")?;
            rest = after;
            continue;
        };
        match lookup(name) {
            Some(value) => out.push(value.as_ref())?,
            None => {
                out.push(b"$(")?;
                out.push(name.as_bytes())?;
                out.push(b")")?;
            }
        }
        rest = tail;
    }
    out.push(rest.as_bytes())?;
    Ok(out.bytes)
}

struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Bounded {
    fn push(&mut self, more: &[u8]) -> Result<(), TooLong> {
        if self.bytes.len() + more.len() > self.most {
            return Err(TooLong);
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(input: &str, most: usize) -> Result<String, TooLong> {
        let env = [("A", "1"), ("EMPTY", ""), ("REF", "$(A)"), ("Ü", "u"), ("TEN", "0123456789")];
        let value = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        expand(input, most, value).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn references_expand_as_kubernetes_documents_them() {
        for (what, input, want) in [
            ("a plain word stays", "word", "word"),
            ("a reference in the middle is replaced", "a-$(A)-b", "a-1-b"),
            ("an empty value replaces too", "[$(EMPTY)]", "[]"),
            ("an unknown name stays as written", "$(NOPE)", "$(NOPE)"),
            ("a doubled dollar is one dollar", "$$", "$"),
            ("a doubled dollar escapes the reference", "$$(A)", "$(A)"),
            ("three dollars are a dollar and a reference", "$$$(A)", "$1"),
            ("a dollar at the end stays", "cost 5$", "cost 5$"),
            ("a dollar before a letter stays", "$A", "$A"),
            ("a reference that is never closed stays", "$(A", "$(A"),
            ("an unclosed one does not swallow a later one", "$(A $(A)", "$(A $(A)"),
            ("values are not expanded again", "$(REF)", "$(A)"),
            ("an empty name is a name that nobody has", "$()", "$()"),
            ("names may be any text", "$(Ü)€$(Ü)", "u€u"),
        ] {
            assert_eq!(expanded(input, 100), Ok(want.to_owned()), "{what}");
        }
    }

    #[test]
    fn nothing_grows_past_its_bound() {
        assert_eq!(expanded("$(TEN)$(TEN)", 20).map(|text| text.len()), Ok(20));
        for (what, input, most) in [
            ("by values", "$(TEN)$(TEN)", 19),
            ("by its own text", "12345678901", 10),
            ("by what stays as written", "$(NOPE)", 6),
            ("at the first value already", "$(TEN)", 9),
        ] {
            assert_eq!(expanded(input, most), Err(TooLong), "{what}");
        }
    }
}
