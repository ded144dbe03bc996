//! The kubelet's flags that stand for a field of its configuration file.

use std::sync::LazyLock;

use super::KubeletConfiguration;
use super::fields::FieldValue;
use super::tree::{Entry, Node, Origin, Value};

/// How the text after a flag becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    Text,
    /// May stand alone, meaning true.
    Bool,
    Int,
    /// `a,b,c`
    List,
    /// `a=b,c=d`; replaces the map.
    Map,
    /// `a<b,c<d`; replaces the map.
    LessMap,
    /// `A=true,B=false`; merged into the map.
    Gates,
    /// `key=value:Effect,...`
    Taints,
    /// `name:value,...`, a name may come twice.
    Headers,
    /// `node:type=quantity,type=quantity;...`
    ReservedMemory,
}

/// A flag, and the names that lead to the field it stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigFlag {
    pub name: &'static str,
    pub path: Vec<&'static str>,
    pub kind: FlagKind,
}

/// In the order of the fields they stand for. Each is declared with its field.
pub static CONFIG_FLAGS: LazyLock<Vec<ConfigFlag>> = LazyLock::new(|| {
    let flags = KubeletConfiguration::fields().into_iter().filter_map(|field| {
        let (name, kind) = field.flag?;
        Some(ConfigFlag { name, path: field.path, kind })
    });
    flags.collect()
});

impl ConfigFlag {
    /// Writes the flag's value over the field it stands for.
    pub(super) fn apply(&self, tree: &mut Node, given: &str) -> Result<(), String> {
        let origin = Origin::Flag(self.name);
        let node = |value| Node { place: origin.clone(), value };
        let entry = |key: &str, tree| Entry { key: key.to_owned(), place: origin.clone(), tree };
        let text = |text: &str| node(Value::Text(text.trim().to_owned()));
        let map = |entries: Vec<(&str, &str)>| {
            Value::Map(entries.into_iter().map(|(key, value)| entry(key, text(value))).collect())
        };
        let value = match self.kind {
            FlagKind::Text => Value::Text(given.to_owned()),
            FlagKind::Bool => Value::Bool(boolean(given)?),
            FlagKind::Int => {
                let number: i64 = given.parse().map_err(|_| format!("{given:?} is not a whole number"))?;
                Value::Number(number.into())
            }
            FlagKind::List => Value::List(parts(given).map(text).collect()),
            FlagKind::Map => map(pairs(given, '=', "name=value")?),
            FlagKind::LessMap => map(pairs(given, '<', "signal<threshold")?),
            FlagKind::Gates => {
                for (gate, on) in pairs(given, '=', "Gate=true")? {
                    let path = [self.path.as_slice(), &[gate]].concat();
                    tree.set(&path, node(Value::Bool(boolean(on)?)));
                }
                return Ok(());
            }
            FlagKind::Taints => Value::List(
                parts(given)
                    .map(|part| taint(part).map(|taint| node(map(taint))))
                    .collect::<Result<_, _>>()?,
            ),
            FlagKind::Headers => {
                let mut headers: Vec<Entry> = vec![];
                for (name, value) in pairs(given, ':', "name:value")? {
                    match headers.iter_mut().find(|header| header.key == name).map(|h| &mut h.tree.value) {
                        Some(Value::List(values)) => values.push(text(value)),
                        _ => headers.push(entry(name, node(Value::List(vec![text(value)])))),
                    }
                }
                Value::Map(headers)
            }
            FlagKind::ReservedMemory => Value::List(
                given
                    .split(';')
                    .filter(|part| !part.trim().is_empty())
                    .map(|part| {
                        reservation(part).map(|(numa, limits)| {
                            node(Value::Map(vec![
                                entry("numaNode", node(Value::Number(numa.into()))),
                                entry("limits", node(map(limits))),
                            ]))
                        })
                    })
                    .collect::<Result<_, _>>()?,
            ),
        };
        tree.set(&self.path, node(value));
        Ok(())
    }
}

fn parts(given: &str) -> impl Iterator<Item = &str> {
    given.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn pairs<'a>(given: &'a str, separator: char, form: &str) -> Result<Vec<(&'a str, &'a str)>, String> {
    parts(given)
        .map(|part| {
            let (key, value) =
                part.split_once(separator).ok_or_else(|| format!("{part:?} is not of the form {form}"))?;
            Ok((key.trim(), value.trim()))
        })
        .collect()
}

fn boolean(given: &str) -> Result<bool, String> {
    match given.trim() {
        "true" | "True" | "TRUE" | "1" | "t" | "T" => Ok(true),
        "false" | "False" | "FALSE" | "0" | "f" | "F" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn taint(part: &str) -> Result<Vec<(&str, &str)>, String> {
    let wrong = || format!("{part:?} is not a taint: write key=value:Effect or key:Effect");
    let (key, effect) = part.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    if key.is_empty() || effect.is_empty() {
        return Err(wrong());
    }
    Ok(vec![("key", key), ("value", value), ("effect", effect)])
}

/// A NUMA node and what is set aside on it, by resource.
type Reservation<'a> = (i64, Vec<(&'a str, &'a str)>);

fn reservation(part: &str) -> Result<Reservation<'_>, String> {
    let wrong = || format!("{part:?} is not of the form 0:memory=1Gi,hugepages-1Gi=2Gi");
    let (numa, limits) = part.split_once(':').ok_or_else(wrong)?;
    Ok((numa.trim().parse().map_err(|_| wrong())?, pairs(limits, '=', "memory=1Gi")?))
}

impl FlagKind {
    /// What stands for the value in a usage message.
    pub fn value_name(self) -> &'static str {
        match self {
            Self::Bool => "true|false",
            Self::Int => "N",
            Self::Text => "TEXT",
            Self::List | Self::Taints | Self::Headers => "LIST",
            Self::Map | Self::LessMap | Self::Gates | Self::ReservedMemory => "PAIRS",
        }
    }
}
