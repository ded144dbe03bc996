//! How a section of the configuration is declared: one block for each field, from which everything that is known of it comes.
//!
//! ```text
//! pub max_pods: i32 = if_zero(110) => "maxPods", flag("max-pods", Int), check(at_least(0));
//! ```
//!
//! - `pub`: the agent acts on the field, and all of the program may read it. `pub(super)`: it is accepted, checked and shown, but
//!   nothing acts on it. The compiler then keeps the rest of the program from reading it, and whoever gives it a value of their
//!   own is warned. Whoever teaches the agent to act on it makes it `pub`.
//! - `if_zero(x)`: absent, null and zero all mean x. `if_absent(x)`: a zero that is written counts. Which one it is depends on
//!   whether the field is a pointer in v1beta1.
//! - `=> "maxPods"`: the name in the file.
//! - `flag(..)`: the kubelet's flag for it, if it has one, and how its text is read.
//! - `check(..)`: what a value of the right type must still be (`super::checks`). What several fields must be together is there too.
//! - `partly("...")`: the agent acts on it, but not in full; the words say what is missing, and are part of the warning.

use std::collections::BTreeMap;

use super::flags::FlagKind;

/// Whether the agent does what a field says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    ActedOn,
    Partly(&'static str),
    NotActedOn,
}

/// A field as it was declared. Sections are not fields, what is in them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The names that lead to it, such as authentication, webhook, cacheTTL.
    pub path: Vec<&'static str>,
    pub flag: Option<(&'static str, FlagKind)>,
    pub support: Support,
}

impl Field {
    /// Dotted, as in messages.
    pub fn name(&self) -> String {
        self.path.join(".")
    }

    fn under(mut self, section: &'static str) -> Self {
        self.path.insert(0, section);
        self
    }
}

/// A wrong value: the dotted path of its field, and what is wrong.
pub(super) type Problem = (String, String);

/// What a field can hold: a value, or a section of further fields.
pub(super) trait FieldValue {
    /// Whether it counts as "not given", which is how v1beta1 reads the zero of a field that is not a pointer.
    fn is_zero(&self) -> bool {
        false
    }
    /// The fields of a section.
    fn fields() -> Vec<Field> {
        vec![]
    }
    /// What is wrong within a section.
    fn problems(&self) -> Vec<Problem> {
        vec![]
    }
}

macro_rules! zero {
    ($($ty:ty: $zero:expr;)+) => {$(
        impl FieldValue for $ty {
            fn is_zero(&self) -> bool {
                let is_zero: fn(&$ty) -> bool = $zero;
                is_zero(self)
            }
        }
    )+};
}
zero! {
    i32: |v| *v == 0;
    i64: |v| *v == 0;
    String: String::is_empty;
    super::Period: |v| (*v).is_zero();
    super::QuantityText: |v| v.as_str().is_empty();
}

impl FieldValue for bool {}
impl FieldValue for u32 {}
impl FieldValue for f64 {}
impl FieldValue for super::FlushFrequency {}
impl<T> FieldValue for Option<T> {}
impl<T> FieldValue for Vec<T> {}
impl<T> FieldValue for BTreeMap<String, T> {}

/// Declares sections, which deserialize into their effective form at once: what is not given has its default.
macro_rules! section {
    ($($(#[$doc:meta])* $name:ident {
        $(
            $(#[$field_doc:meta])*
            $vis:vis $field:ident: $ty:ty = $rule:ident($default:expr) => $wire:literal
                $(, flag($flag:literal, $kind:ident))?
                $(, check($check:expr))?
                $(, partly($partly:literal))?;
        )*
    })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(rename = $wire)] $vis $field: $ty,)*
        }

        impl $name {
            const NAMES: &'static [&'static str] = &[$($wire),*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::config::fields::FieldValue for $name {
            fn fields() -> Vec<$crate::config::fields::Field> {
                use $crate::config::fields::{self, FieldValue};
                let mut found = vec![];
                $(
                    let flag = [$(($flag, $crate::config::FlagKind::$kind))?].first().copied();
                    let partly = [$($partly)?].first().copied();
                    let inner = <$ty as FieldValue>::fields();
                    fields::declare(&mut found, $wire, flag, fields::support(stringify!($vis), partly), inner);
                )*
                found
            }

            fn problems(&self) -> Vec<$crate::config::fields::Problem> {
                use $crate::config::fields;
                let mut found = vec![];
                $(
                    $(fields::complain(&mut found, $wire, ($check)(&self.$field));)?
                    fields::within(&mut found, $wire, &self.$field);
                )*
                found
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a mapping of field names to values")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut section = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $($wire => {
                                    let given = map.next_value::<Option<$ty>>()?;
                                    if let Some(value) = $crate::config::fields::$rule(given) {
                                        section.$field = value;
                                    }
                                })*
                                unknown => {
                                    let refuse = $crate::config::fields::Refuse(unknown, $name::NAMES);
                                    map.next_value_seed(refuse)?;
                                }
                            }
                        }
                        Ok(section)
                    }
                }
                deserializer.deserialize_map(Visitor)
            }
        }
    )+};
}
pub(super) use section;

pub(super) fn if_zero<T: FieldValue>(given: Option<T>) -> Option<T> {
    given.filter(|value| !value.is_zero())
}

pub(super) fn if_absent<T>(given: Option<T>) -> Option<T> {
    given
}

/// What the declaration's visibility says.
pub(super) fn support(visibility: &str, partly: Option<&'static str>) -> Support {
    match (visibility, partly) {
        ("pub", None) => Support::ActedOn,
        ("pub", Some(missing)) => Support::Partly(missing),
        _ => Support::NotActedOn,
    }
}

pub(super) fn declare(
    found: &mut Vec<Field>,
    name: &'static str,
    flag: Option<(&'static str, FlagKind)>,
    support: Support,
    inner: Vec<Field>,
) {
    if inner.is_empty() {
        found.push(Field { path: vec![name], flag, support });
    } else {
        found.extend(inner.into_iter().map(|field| field.under(name)));
    }
}

/// Adds what a check found wrong with a field's value.
pub(super) fn complain(found: &mut Vec<Problem>, name: &str, problems: Vec<String>) {
    found.extend(problems.into_iter().map(|problem| (name.to_owned(), problem)));
}

/// Adds what is wrong within a section.
pub(super) fn within<T: FieldValue>(found: &mut Vec<Problem>, name: &str, section: &T) {
    found.extend(section.problems().into_iter().map(|(path, problem)| (format!("{name}.{path}"), problem)));
}

/// Refuses a field that does not exist, at the place of its value, so that the error is located like any other.
pub(super) struct Refuse<'a>(pub &'a str, pub &'static [&'static str]);

impl<'de> serde::de::DeserializeSeed<'de> for Refuse<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(serde::de::Error::unknown_field(self.0, self.1))
    }
}
