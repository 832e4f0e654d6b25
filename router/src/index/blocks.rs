//! The blocks: their names and the sets of their holders, in pages, and the table that finds them by name.
//!
//! Names that arrive one after the other lie side by side, and a chain arrives in its order with the request that is
//! expected to make it. So the successor of a block is looked for beside it first; only where chains part, or order was
//! unknown, the table is asked. Nothing depends on the guess.

use std::hint::black_box;

use shared::BlockName;

use super::heads::Heads;
use super::page::{PAGE, Page, Place, VACANT};
use super::sets::SetId;
use super::table::{Key, Table};

/// Blocks that are looked for at a time when they do not lie beside each other: as many misses of a cache as a core has in
/// flight.
pub(super) const APPROACHED: usize = 16;

/// The blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    table: Table,
    heads: Heads,
    pages: Vec<Page>,
    /// Pages that are there. Those given back keep their number in `pages`.
    pages_present: usize,
    len: usize,
    /// Where the next block is tried.
    cursor: Place,
    /// Where the next sweep goes on.
    swept: Place,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            heads: Heads::new(),
            pages: Vec::new(),
            pages_present: 0,
            len: 0,
            cursor: Place(0),
            swept: Place(0),
        }
    }

    /// Blocks that are there, those with an empty set among them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The place of a name; `previous` is that of its predecessor, when known.
    pub(super) fn find(&self, previous: Option<Place>, name: BlockName) -> Option<Place> {
        if let Some(beside) = previous.map(|previous| previous.later(1))
            && self.is(beside, name)
        {
            return Some(beside);
        }
        self.table.find(Key::of(name), |place| self.is(place, name))
    }

    /// The same, where blocks are asked for again and again.
    pub(super) fn look_up(&self, previous: Option<Place>, name: BlockName) -> Option<Place> {
        if let Some(beside) = previous.map(|previous| previous.later(1))
            && self.is(beside, name)
        {
            return Some(beside);
        }
        let key = Key::of(name);
        if let Some(guess) = self.heads.guess(key)
            && self.is(guess, name)
        {
            return Some(guess);
        }
        let found = self.table.find(key, |place| self.is(place, name))?;
        self.heads.learn(key, found);
        Some(found)
    }

    /// Brings what [`Self::find`] and [`Self::insert`] read of these names close, all at a time: each alone would be waited
    /// for.
    pub(super) fn approach(&self, names: &[BlockName]) {
        let read = names.iter().fold(0, |all, &name| all | self.table.peek(Key::of(name)));
        black_box(read);
    }

    /// The set of a block's holders.
    pub(super) fn set(&self, place: Place) -> SetId {
        self.pages[place.page()].set(place)
    }

    /// Gives so many blocks side by side, all in one page, another set.
    pub(super) fn put(&mut self, place: Place, count: usize, set: SetId) {
        self.pages[place.page()].put(place, count, set);
    }

    /// How many blocks from `place` on, which is that of the first of `names`, are the blocks of `names` and have its
    /// set. At least 1; the end of a page ends the count.
    pub(super) fn stretch(&self, place: Place, names: &[BlockName]) -> usize {
        self.pages[place.page()].stretch(place, names)
    }

    /// Adds a block that is not there.
    pub(super) fn insert(&mut self, name: BlockName, set: SetId) -> Place {
        let place = self.take_place(None);
        self.fill(place, name, set);
        let pages = &self.pages;
        self.table.insert(Key::of(name), place, |place| key_at(pages, place));
        self.len += 1;
        self.heads.fit(self.len);
        place
    }

    /// Adds blocks up to one that is there already; the first one is not. Says how many, and where the last of them lies.
    pub(super) fn insert_run(&mut self, names: &[BlockName], set: SetId) -> (usize, Place) {
        let mut last = None;
        for (count, &name) in names.iter().enumerate() {
            if count.is_multiple_of(APPROACHED) {
                self.approach(&names[count..names.len().min(count + APPROACHED)]);
            }
            let place = self.take_place(None);
            self.fill(place, name, set);
            let pages = &self.pages;
            let is_it = |place| lies_at(pages, place, name);
            let entry = (Key::of(name), place);
            if self.table.find_or_insert(entry, is_it, |place| key_at(pages, place)).is_some() {
                self.vacate(place);
                self.cursor = place;
                self.heads.fit(self.len);
                return (count, last.expect("the first one is not there"));
            }
            self.len += 1;
            last = Some(place);
        }
        self.heads.fit(self.len);
        (names.len(), last.expect("there are names"))
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, place: Place) {
        let pages = &self.pages;
        self.table.remove(key_at(pages, place), place, |place| key_at(pages, place));
        self.len -= 1;
        self.heads.fit(self.len);
        self.vacate(place);
    }

    /// Lays blocks side by side, in this order.
    pub(super) fn gather(&mut self, places: &[Place]) {
        for &place in places {
            let to = self.take_place(None);
            self.relocate(place, to);
        }
    }

    /// The place and set of the next block of an endless round over all blocks, at most `steps` places further on.
    /// `steps` is what is left of them.
    pub(super) fn sweep(&mut self, steps: &mut usize) -> Option<(Place, SetId)> {
        while 0 < *steps {
            *steps -= 1;
            let place = self.swept;
            match self.pages.get(place.page()) {
                None => self.swept = Place(0),
                Some(page) if page.used() == 0 => self.swept = Place::new(place.page() + 1, 0, 0),
                Some(page) => {
                    self.swept = place.later(1);
                    let set = page.set(place);
                    if set != VACANT {
                        return Some((place, set));
                    }
                }
            }
        }
        None
    }

    /// Gives pages back while more than half of the places are vacant: moves at most `blocks_max` blocks.
    pub(super) fn compact(&mut self, blocks_max: usize) {
        let mut moved = 0;
        while moved < blocks_max && 2 * (self.len + PAGE) < self.pages_present * PAGE {
            let last = self.pages.len() - 1;
            let (group, at) = self.pages[last].first().expect("an empty last page is given back");
            let to = self.take_place(Some(last));
            self.relocate(Place::new(last, group, at), to);
            moved += 1;
        }
    }

    /// The names of a range, with their sets.
    pub(super) fn of_range(&self, range: u8) -> impl Iterator<Item = (BlockName, SetId)> + '_ {
        let places = self.table.of_range(range);
        places.map(|place| (self.pages[place.page()].name(place), self.set(place)))
    }

    /// Pages that are there.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.pages_present
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.pages_present * Page::BYTES + self.pages.capacity() * size_of::<Page>();
        self.table.bytes() + self.heads.bytes() + pages
    }

    fn is(&self, place: Place, name: BlockName) -> bool {
        lies_at(&self.pages, place, name)
    }

    /// A vacant place: the next one of the page of the last, or else in a page with many, or else in a new page.
    fn take_place(&mut self, avoided: Option<usize>) -> Place {
        let (page, group, at) = (self.cursor.page(), self.cursor.group(), self.cursor.at());
        let found = self.vacant_from(page, group, at).filter(|_| avoided != Some(page));
        let place = found.unwrap_or_else(|| {
            let page = self.roomy_page(avoided).unwrap_or_else(|| self.new_page());
            self.vacant_from(page, 0, 0).expect("a roomy page has a vacant place")
        });
        self.cursor = if place.ends_page() { place } else { place.later(1) };
        place
    }

    fn vacant_from(&self, page: usize, group: usize, at: usize) -> Option<Place> {
        let (group, at) = self.pages.get(page)?.vacant_from(group, at)?;
        Some(Place::new(page, group, at))
    }

    /// A page with an eighth of its places vacant, unless fewer are vacant in all. Found at the latest after one round,
    /// which an eighth of a page pays for.
    fn roomy_page(&self, avoided: Option<usize>) -> Option<usize> {
        let places = self.pages_present * PAGE;
        if (places - self.len) * 8 < places {
            return None;
        }
        let start = self.cursor.page().min(self.pages.len());
        let round = (start..self.pages.len()).chain(0..start);
        round.filter(|&page| Some(page) != avoided).find(|&page| {
            let used = self.pages[page].used();
            0 < used && used <= PAGE - PAGE / 8
        })
    }

    fn new_page(&mut self) -> usize {
        self.pages_present += 1;
        if self.pages_present <= self.pages.len() {
            let absent = self.pages.iter().position(|page| !page.is_present());
            let number = absent.expect("fewer pages are present than numbered");
            self.pages[number] = Page::vacant();
            return number;
        }
        self.pages.push(Page::vacant());
        self.pages.len() - 1
    }

    fn fill(&mut self, place: Place, name: BlockName, set: SetId) {
        self.pages[place.page()].fill(place, name, set);
    }

    fn vacate(&mut self, place: Place) {
        if !self.pages[place.page()].vacate(place) {
            return;
        }
        self.pages[place.page()] = Page::absent();
        self.pages_present -= 1;
        while self.pages.last().is_some_and(|page| !page.is_present()) {
            self.pages.pop();
        }
    }

    fn relocate(&mut self, from: Place, to: Place) {
        let page = &self.pages[from.page()];
        let (name, set) = (page.name(from), page.set(from));
        self.fill(to, name, set);
        self.table.relocate(Key::of(name), from, to);
        self.vacate(from);
    }
}

fn lies_at(pages: &[Page], place: Place, name: BlockName) -> bool {
    pages.get(place.page()).is_some_and(|page| page.is(place, name))
}

fn key_at(pages: &[Page], place: Place) -> Key {
    Key::of(pages[place.page()].name(place))
}
