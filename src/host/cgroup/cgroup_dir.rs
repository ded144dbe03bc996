//! One cgroup, opened: its files and those of the cgroups below it are read from there, so that a summary of a hundred pods
//! does not walk a hundred long paths ten times.

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::layout::{self, Layout};
use super::{Cgroups, Version};

/// No file of a cgroup that is read here is longer.
const LONGEST_FILE: usize = 64 << 10;
const USUAL_FILE: usize = 4 << 10;

/// The processes of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Members {
    pub count: u64,
    pub first: Option<u32>,
}

pub struct CgroupDir<'a> {
    layout: &'a Layout,
    relative: &'a Path,
    /// One for each hierarchy, opened when it is needed.
    opened: Vec<OnceCell<Option<OwnedFd>>>,
    path: String,
    text: Vec<u8>,
}

impl Cgroups {
    /// The cgroup at a path below the hierarchies. Whether there is one shows when it is read.
    pub fn at<'a>(&'a self, relative: &'a Path) -> CgroupDir<'a> {
        let opened = self.layout.hierarchies.iter().map(|_| OnceCell::new()).collect();
        CgroupDir {
            layout: &self.layout,
            relative,
            opened,
            path: String::new(),
            text: Vec::with_capacity(USUAL_FILE),
        }
    }
}

impl CgroupDir<'_> {
    pub(super) fn version(&self) -> Version {
        self.layout.version
    }

    /// The names of the cgroups directly below this one.
    pub fn below(&self) -> Vec<String> {
        let Some(at) = self.any() else { return vec![] };
        let path = self.layout.hierarchies[at].path.join(self.relative);
        layout::subdirectories(&path).unwrap_or_default()
    }

    /// Who is in the cgroup of that name below this one, or in this one itself if it is empty. Those below are left out.
    pub fn members(&mut self, below: &str) -> Option<Members> {
        let text = self.read(self.any()?, below, "cgroup.procs")?;
        let first = text.lines().next().and_then(|line| line.parse().ok());
        Some(Members { count: text.lines().count() as u64, first })
    }

    /// A file of the cgroup of that name below this one, in the hierarchy of a controller.
    pub(super) fn file(&mut self, below: &str, controller: &str, name: &str) -> Option<&str> {
        let at = self.layout.hierarchies.iter().position(|h| h.controllers.contains(controller))?;
        self.read(at, below, name)
    }

    /// The hierarchy that is asked for what all of them know.
    fn any(&self) -> Option<usize> {
        let all = &self.layout.hierarchies;
        all.iter().position(|h| h.controllers.contains("memory")).or((!all.is_empty()).then_some(0))
    }

    fn read(&mut self, at: usize, below: &str, name: &str) -> Option<&str> {
        let folder = self.opened.get(at)?.get_or_init(|| {
            let path = self.layout.hierarchies[at].path.join(self.relative);
            openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
        });
        self.path.clear();
        if !below.is_empty() {
            self.path.push_str(below);
            self.path.push('/');
        }
        self.path.push_str(name);
        let file =
            openat(folder.as_ref()?, &*self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        self.text.clear();
        while self.text.len() < LONGEST_FILE {
            // With room for the whole file at once, it takes two reads instead of ten.
            self.text.reserve(USUAL_FILE);
            if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut self.text)).ok()? == 0 {
                break;
            }
        }
        std::str::from_utf8(&self.text).ok()
    }
}
