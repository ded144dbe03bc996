//! How a section of the configuration is declared: field by field, with the name on disk and the kubelet's default.

/// Whether a value counts as "not given", which is how v1beta1 reads the zero of a field that is not a pointer.
pub(super) trait Zero {
    fn is_zero(&self) -> bool;
}

macro_rules! zero {
    ($($ty:ty: $zero:expr;)+) => {$(
        impl Zero for $ty {
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
    super::Amount: |v| v.as_str().is_empty();
}

/// Declares a section. `if_zero(x)`: absent, null and zero all mean x. `if_absent(x)`: a zero that is written counts.
///
/// The section deserializes into its effective form at once: what is not given has its default.
macro_rules! section {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $wire:literal $field:ident: $ty:ty = $rule:ident($default:expr),)*
    })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(rename = $wire)] pub $field: $ty,)*
        }

        impl $name {
            pub const FIELDS: &'static [&'static str] = &[$($wire),*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
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
                                    let refuse = $crate::config::fields::Refuse(unknown, $name::FIELDS);
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

pub(super) fn if_zero<T: Zero>(given: Option<T>) -> Option<T> {
    given.filter(|value| !value.is_zero())
}

pub(super) fn if_absent<T>(given: Option<T>) -> Option<T> {
    given
}

/// Refuses a field that does not exist, at the place of its value, so that the error is located like any other.
pub(super) struct Refuse<'a>(pub &'a str, pub &'static [&'static str]);

impl<'de> serde::de::DeserializeSeed<'de> for Refuse<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(serde::de::Error::unknown_field(self.0, self.1))
    }
}
