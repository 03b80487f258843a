// Package capacity bounds the memory that RescheduleSources take in a program that keeps all of
// them. Their authors choose how many there are, and how large.
//
// It guarantees that what is counted is never more than the total, and that a namespace takes at
// most half of what is left at that moment, so that a newcomer finds something free. An object
// that finds nothing free is kept as a stand-in of some 2 KiB: its identity, what the guard of
// its calls needs, and a note that says why. Bytes are given back by Release, and by Settle.
//
// How it works: Admit is called in the transform of an informer, before anything else holds the
// object. It counts the bytes of the object by reflection, with its maps and slices, as often as
// the program has copies of it, and a fixed number for each source. An update counts the
// difference, and what is counted leaves 1 KiB to spare, so that a source which may not grow can be
// suspended and learn that its sink is gone. While a smaller object is not in force, the larger one before it may be: the
// adapter says with Settle which one is. What was refused is admitted again by the next event of
// the object, or by a caller that Retry tells its name.
//
// It leaves out the stand-ins, whose number only a ResourceQuota bounds, and what a list of the
// API server takes before the transform sees it: an API server without streaming lists answers
// with all objects at once.
package capacity
