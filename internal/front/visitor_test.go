package front

import (
	"context"
	"testing"
)

func TestVisitor(t *testing.T) {
	ctx, end := WithVisitor(context.Background())
	other, _ := WithVisitor(context.Background())
	v := VisitorFrom(ctx)
	if v == nil || v.ID == VisitorFrom(other).ID || VisitorFrom(context.Background()) != nil {
		t.Fatal("visitors are not told apart")
	}
	select {
	case <-v.Done():
		t.Fatal("it ended before its connection")
	default:
	}
	end()
	end() // closing twice is what sockets do
	<-v.Done()
}
