//! The lifetime of objects: what exists, what was destroyed, and where.

use super::finding::{Finding, Kind};
use super::stack::Stack;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Weak;

/// Objects that programs never destroy: devices, and contexts that librdmacm opens for them.
const NOT_LEAKED: [&str; 2] = ["ibv_device", "ibv_context"];

/// Number of destroyed objects whose memory is kept, so that calls with them are recognised.
const MAX_DESTROYED: usize = 4096;

/// Objects by the address of their C structure.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// With the number of objects that were created before each.
    alive: HashMap<usize, (usize, Object)>,
    /// Number of objects that were created so far.
    created: usize,
    destroyed: HashMap<usize, Object>,
    /// The order of `destroyed`.
    order: VecDeque<usize>,
    /// What keeps the memory of destroyed objects, whose addresses are then not used again.
    memory: VecDeque<Weak<dyn Any + Send + Sync>>,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) name: &'static str,
    /// Where it was created or destroyed.
    pub(super) stack: Stack,
}

impl Objects {
    /// An object was created.
    pub(super) fn add(&mut self, name: &'static str, key: usize) {
        self.alive.insert(key, (self.created, Object { name, stack: Stack::capture() }));
        self.created += 1;
    }

    /// Does not count an object as a leak.
    pub(super) fn keep(&mut self, key: usize) {
        self.alive.remove(&key);
    }

    /// Returns an object that exists.
    pub(super) fn alive(&self, key: usize) -> Option<&Object> {
        self.alive.get(&key).map(|(_, object)| object)
    }

    /// Returns an object that was destroyed.
    pub(super) fn destroyed(&self, key: usize) -> Option<&Object> {
        self.destroyed.get(&key)
    }

    /// An object was destroyed. `memory` keeps its memory.
    pub(super) fn remove(&mut self, name: &'static str, key: usize, memory: Weak<dyn Any + Send + Sync>) {
        self.alive.remove(&key);
        if self.order.len() == MAX_DESTROYED
            && let Some(oldest) = self.order.pop_front()
        {
            self.destroyed.remove(&oldest);
            self.memory.pop_front();
        }
        self.destroyed.insert(key, Object { name, stack: Stack::capture() });
        self.order.push_back(key);
        self.memory.push_back(memory);
    }

    /// Returns a remark for each object that still exists, in the order in which they were created.
    pub(super) fn leaks(&self) -> Vec<Finding> {
        let leaked = self.alive.iter().filter(|(_, (_, object))| !NOT_LEAKED.contains(&object.name));
        let mut leaked: Vec<_> = leaked.collect();
        leaked.sort_unstable_by_key(|(_, (number, _))| *number);
        let finding = |(key, (_, object)): (&usize, &(usize, Object))| Finding {
            kind: Kind::Leak,
            text: format!("{} {key:#x} was not destroyed", object.name),
            calls: vec![("created", object.stack.clone())],
        };
        leaked.into_iter().map(finding).collect()
    }
}
