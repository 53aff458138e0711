//! The allocator of a component: it only moves forward.
//!
//! Each call of a policy has an instance of its own whose memory is thrown away afterwards, so giving memory back
//! buys nothing; a general allocator is 9 KB of a component that shall be small. The last allocation can grow and be
//! given back in place, which is what a `Vec` that is being filled does.

use std::{
    alloc::{GlobalAlloc, Layout},
    arch::wasm32::{memory_grow, memory_size},
    cell::Cell,
    ptr,
};

const PAGE: usize = 65_536;

struct Bump {
    /// First free byte; 0 before the first allocation.
    next: Cell<usize>,
}

// SAFETY: wasm32-unknown-unknown has no threads; the host refuses components that want them.
unsafe impl Sync for Bump {}

#[global_allocator]
static BUMP: Bump = Bump { next: Cell::new(0) };

unsafe extern "C" {
    /// Where the linker ends its data; only its address means something.
    static __heap_base: u8;
}

impl Bump {
    fn next(&self) -> usize {
        match self.next.get() {
            0 => (&raw const __heap_base).addr(),
            next => next,
        }
    }

    /// Makes memory reach `end`; false when the host does not give it.
    fn reach(&self, end: usize) -> bool {
        let have = memory_size(0) * PAGE;
        end <= have || memory_grow(0, (end - have).div_ceil(PAGE)) != usize::MAX
    }

    fn place(&self, start: usize, size: usize) -> *mut u8 {
        match start.checked_add(size) {
            Some(end) if self.reach(end) => {
                self.next.set(end);
                ptr::with_exposed_provenance_mut(start)
            }
            _ => ptr::null_mut(),
        }
    }
}

// SAFETY: regions handed out start at an aligned `next`, end where the next one begins, and lie below the memory's end.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.next().checked_next_multiple_of(layout.align()) {
            Some(start) => self.place(start, layout.size()),
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if at.addr() + layout.size() == self.next() {
            self.next.set(at.addr());
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if at.addr() + layout.size() == self.next() {
            return self.place(at.addr(), size);
        }
        if size <= layout.size() {
            return at;
        }
        // SAFETY: the caller keeps the promises of `realloc`; the old and the new region do not overlap.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(at, new, layout.size());
            }
            new
        }
    }
}
