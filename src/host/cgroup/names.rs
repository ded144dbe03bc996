//! The names of cgroups. One name, two spellings: a path of plain directories, or nested systemd slices.

use std::path::PathBuf;

use super::Driver;

/// The parts of a name, from the root down. No part contains `_`, since in a slice that stands for `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupName(Vec<String>);

impl CgroupName {
    /// Reads a --cgroup-root in either spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<String> = match text.rsplit('/').next().and_then(|last| last.strip_suffix(".slice")) {
            Some("-") => vec![],
            Some(slice) => slice.split('-').map(|part| part.replace('_', "-")).collect(),
            None => text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        };
        let good =
            |part: &String| !part.is_empty() && part != "." && part != ".." && !part.contains(['_', '\0']);
        parts.iter().all(good).then_some(Self(parts))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn child(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Self(parts)
    }

    /// `/kubepods/burstable/podUID`
    pub fn cgroupfs_path(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    pub fn relative_path(&self) -> PathBuf {
        self.0.iter().collect()
    }

    /// `kubepods-burstable-podUID_WITH_UNDERSCORES.slice`, or nothing for the root.
    pub fn slice(&self) -> String {
        if self.is_empty() { String::new() } else { format!("{}.slice", self.escaped().join("-")) }
    }

    /// A slice lies inside of the slices that its name begins with.
    pub fn relative_slice_path(&self) -> PathBuf {
        let escaped = self.escaped();
        (1..=escaped.len()).map(|n| format!("{}.slice", escaped[..n].join("-"))).collect()
    }

    fn escaped(&self) -> Vec<String> {
        self.0.iter().map(|part| part.replace('-', "_")).collect()
    }

    /// The uid of the pod whose cgroup has this directory name below this cgroup, if it is a pod's.
    pub fn pod_in(&self, directory: &str, driver: Driver) -> Option<String> {
        match driver {
            Driver::Cgroupfs => directory.strip_prefix("pod").map(str::to_owned),
            Driver::Systemd => {
                let prefix = format!("{}-pod", self.escaped().join("-"));
                let uid = directory.strip_suffix(".slice")?.strip_prefix(&prefix)?;
                (!uid.contains('-')).then(|| uid.replace('_', "-"))
            }
        }
    }
}

/// The slice that a slice lies in; `-.slice` is the root.
pub(super) fn parent_slice(slice: &str) -> String {
    match slice.strip_suffix(".slice").and_then(|name| name.rsplit_once('-')) {
        Some((parent, _)) if !parent.is_empty() => format!("{parent}.slice"),
        _ => "-.slice".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_has_two_spellings() {
        let pod =
            CgroupName::parse("/").expect("root").child("kubepods").child("burstable").child("pod1-2-3");
        assert_eq!(pod.cgroupfs_path(), "/kubepods/burstable/pod1-2-3");
        assert_eq!(pod.slice(), "kubepods-burstable-pod1_2_3.slice");
        assert_eq!(
            pod.relative_slice_path(),
            PathBuf::from("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2_3.slice")
        );
        assert_eq!(parent_slice(&pod.slice()), "kubepods-burstable.slice");
        assert_eq!(parent_slice("kubepods.slice"), "-.slice");
    }

    #[test]
    fn a_cgroup_root_is_read_in_either_spelling() {
        for (text, path) in
            [("", "/"), ("/", "/"), ("/a/b", "/a/b"), ("a.slice/a-b_c.slice", "/a/b-c"), ("-.slice", "/")]
        {
            assert_eq!(CgroupName::parse(text).map(|n| n.cgroupfs_path()).as_deref(), Some(path), "{text}");
        }
        for bad in ["/a_b", "/../x", "/a/./b"] {
            assert_eq!(CgroupName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_directory_gives_its_pod_back() {
        let burstable = CgroupName::parse("/kubepods/burstable").expect("name");
        assert_eq!(burstable.pod_in("pod1-2", Driver::Cgroupfs).as_deref(), Some("1-2"));
        assert_eq!(burstable.pod_in("other", Driver::Cgroupfs), None);
        assert_eq!(
            burstable.pod_in("kubepods-burstable-pod1_2.slice", Driver::Systemd).as_deref(),
            Some("1-2")
        );
        let all = CgroupName::parse("/kubepods").expect("name");
        assert_eq!(all.pod_in("kubepods-burstable.slice", Driver::Systemd), None);
        assert_eq!(all.pod_in("kubepods-pod1_2.slice", Driver::Systemd).as_deref(), Some("1-2"));
    }
}
