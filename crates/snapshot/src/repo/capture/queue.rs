//! The queue of visits, shared by the threads of one capture. It is last in, first out, so that few directories are
//! open at a time.

use std::sync::{Condvar, Mutex};

pub(super) struct WorkQueue<T> {
    state: Mutex<WorkQueueState<T>>,
    bell: Condvar,
}

struct WorkQueueState<T> {
    waiting: Vec<T>,
    /// Tasks that are being processed and may add more.
    busy: usize,
    /// Threads that wait for the bell; without any, ringing it would be a useless system call.
    idle: usize,
    stopped: bool,
}

impl<T> WorkQueue<T> {
    pub(super) fn new(waiting: Vec<T>) -> WorkQueue<T> {
        WorkQueue {
            state: Mutex::new(WorkQueueState { waiting, busy: 0, idle: 0, stopped: false }),
            bell: Condvar::new(),
        }
    }

    pub(super) fn push(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        let before = state.waiting.len();
        state.waiting.extend(tasks);
        let more = (state.waiting.len() - before).min(state.idle);
        drop(state);
        match more {
            0 => {}
            1 => self.bell.notify_one(),
            _ => self.bell.notify_all(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().expect("no code panics while it holds this lock").waiting.len()
    }

    /// Processes tasks until none are left on any thread. The first failure stops all threads.
    pub(super) fn work<E>(&self, mut each: impl FnMut(T) -> Result<(), E>) -> Result<(), E> {
        while let Some(task) = self.next() {
            let done = each(task);
            let mut state = self.state.lock().expect("no code panics while it holds this lock");
            state.busy -= 1;
            state.stopped |= done.is_err();
            if state.stopped || (state.busy == 0 && state.waiting.is_empty()) {
                self.bell.notify_all();
            }
            drop(state);
            done?;
        }
        Ok(())
    }

    fn next(&self) -> Option<T> {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.waiting.pop() {
                state.busy += 1;
                return Some(task);
            }
            if state.busy == 0 {
                return None;
            }
            state.idle += 1;
            state = self.bell.wait(state).expect("no code panics while it holds this lock");
            state.idle -= 1;
        }
    }
}
