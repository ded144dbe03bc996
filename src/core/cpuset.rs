//! A set of CPUs, written as the kernel writes one: `0-3,7`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// No machine has a CPU of a higher number; a set that names one is a mistake, and must not take memory as if it were not.
const HIGHEST: u32 = 1 << 16;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CpuSet(BTreeSet<u32>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no set of CPUs, which would be like 0-3,7: {part:?} {why}")]
pub struct BadCpuSet {
    text: String,
    part: String,
    why: &'static str,
}

impl CpuSet {
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl<const N: usize> From<[u32; N]> for CpuSet {
    fn from(cpus: [u32; N]) -> Self {
        cpus.into_iter().collect()
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = BadCpuSet;

    fn from_str(text: &str) -> Result<Self, BadCpuSet> {
        let mut cpus = Self::default();
        if text.trim().is_empty() {
            return Ok(cpus);
        }
        for part in text.trim().split(',') {
            let bad = |why| BadCpuSet { text: text.into(), part: part.into(), why };
            let number = |text: &str| match text.parse::<u32>() {
                Ok(number) if number < HIGHEST => Ok(number),
                Ok(_) => Err(bad("is more than any machine has")),
                Err(_) => Err(bad("is no number and no range")),
            };
            match part.split_once('-') {
                None => cpus.extend([number(part)?]),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(bad("ends before it begins"));
                    }
                    cpus.extend(first..=last);
                }
            }
        }
        Ok(cpus)
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> Self {
        cpus.to_string()
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadCpuSet;

    fn try_from(text: String) -> Result<Self, BadCpuSet> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_ranges() {
        for (text, cpus) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0-1", vec![0, 1]),
            ("0,2", vec![0, 2]),
            ("0-2,4,6-7", vec![0, 1, 2, 4, 6, 7]),
        ] {
            let set: CpuSet = cpus.iter().copied().collect();
            assert_eq!(set.to_string(), text);
            assert_eq!(text.parse(), Ok(set));
        }
        assert_eq!("2,0-1,1".parse::<CpuSet>().map(|s| s.to_string()), Ok("0-2".into()));
    }

    #[test]
    fn what_is_no_set_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("a", "a"),
            ("1-", "1-"),
            ("0,3-1", "3-1"),
            ("1,,2", ""),
            ("-1", "-1"),
            ("0-4000000000", "0-4000000000"),
            ("99999", "99999"),
        ] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert_eq!(error.part, part, "{error}");
        }
    }
}
