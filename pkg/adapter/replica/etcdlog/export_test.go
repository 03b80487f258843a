package etcdlog

// Ended is closed when etcd has ended, which Close does not wait for.
func (s *Server) Ended() <-chan struct{} { return s.ended }
