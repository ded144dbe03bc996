//! `$(VAR)` references in commands, arguments, environment values and subPathExpr.

/// Replaces every `$(NAME)` that `lookup` knows. `$$` stands for one dollar sign, so `$$(NAME)` stays a literal
/// `$(NAME)`; a reference that `lookup` does not know, and one that is never closed, are left as they were written.
pub fn expand(input: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
            continue;
        }
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let Some((name, tail)) = reference else {
            out.push('$');
            rest = after;
            continue;
        };
        match lookup(name) {
            Some(value) => out.push_str(&value),
            None => {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Expands a command line with a container's environment.
pub fn expand_all(words: &[String], env: &[(String, String)]) -> Vec<String> {
    words.iter().map(|word| expand(word, |name| value_of(env, name))).collect()
}

/// Expands where an unknown name may not pass: the names that were missing come back instead.
pub fn expand_strict(input: &str, env: &[(String, String)]) -> Result<String, Vec<String>> {
    let mut missing = vec![];
    let out = expand(input, |name| {
        let value = value_of(env, name);
        if value.is_none() {
            missing.push(name.to_owned());
        }
        value
    });
    if missing.is_empty() { Ok(out) } else { Err(missing) }
}

fn value_of(env: &[(String, String)], name: &str) -> Option<String> {
    env.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_kubernetes_documents_them() {
        let env: Vec<_> = [("A", "1"), ("EMPTY", ""), ("REF", "$(A)"), ("Ü", "u")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
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
            assert_eq!(expand_all(&[input.to_owned()], &env), [want], "{what}");
        }
    }

    #[test]
    fn the_strict_form_names_what_is_missing() {
        let env = vec![("A".to_owned(), "1".to_owned())];
        assert_eq!(expand_strict("$(A)/x", &env), Ok("1/x".to_owned()));
        assert_eq!(expand_strict("$(B)/$(C)", &env), Err(vec!["B".to_owned(), "C".to_owned()]));
    }
}
