//! An error with all its causes on one line; the outermost message of a transport alone never says what happened.

use std::error::Error;

/// The messages from the outermost to the innermost, each once: many errors repeat their cause at their own end.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let message = error.to_string();
        if !messages.iter().any(|outer| outer.ends_with(&message)) {
            messages.push(message);
        }
        next = error.source();
    }
    messages.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Layer {
        message: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layers(messages: &[&'static str]) -> Layer {
        let (message, inner) = messages.split_first().unwrap();
        let source = (!inner.is_empty()).then(|| Box::new(layers(inner)));
        Layer { message, source }
    }

    #[test]
    fn each_cause_is_named_once_from_the_outside_in() {
        let cases: [(&[&'static str], &str); 4] = [
            (&["refused"], "refused"),
            (&["connect failed", "refused"], "connect failed: refused"),
            (&["connect failed: refused", "refused"], "connect failed: refused"),
            (&["a", "a: b: c", "b: c", "c"], "a: a: b: c"),
        ];
        for (messages, line) in cases {
            assert_eq!(chain(&layers(messages)), line);
        }
    }
}
